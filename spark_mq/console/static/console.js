// Draws the plots of the page: elements with data-samples, the address of {"times": [s], "series": [{"label", "values"}]}.
"use strict";
(() => {
  // Okabe and Ito's colours, which colour-blind people can tell apart, and a dash for each, for those who see none.
  const COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"];
  const DASHES = [[], [8, 4], [2, 3], [10, 3, 2, 3], [4, 2], [12, 6]];
  const BORDERS = ["solid", "dashed", "dotted", "double", "dashed", "dotted"];
  const EVERY_MS = 15000;

  const ink = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  // A label of a legend is text, whatever a topic is called.
  const plain = (text) => String(text).replace(/[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g, "\ufffd");

  // UTC, as all times of the console.
  const moment = (seconds) => new Date(seconds * 1000).toISOString().replace("T", " ").slice(0, 19);

  function options(place, series) {
    const axis = { stroke: ink("--soft"), grid: { stroke: ink("--line"), width: 1 }, ticks: { stroke: ink("--line"), width: 1 } };
    return {
      width: place.clientWidth,
      height: 280,
      tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
      scales: { y: { range: (_, low, high) => [0, Math.max(1, high ?? 1) * 1.05] } },
      legend: { markers: { width: 3, dash: (_, number) => BORDERS[(number - 1) % BORDERS.length] } },
      axes: [{ ...axis, space: 80, values: (_, ticks) => ticks.map((each) => moment(each).slice(11)) }, { ...axis, size: 70, values: (_, ticks) => ticks.map((each) => each.toLocaleString("en")) }],
      series: [
        { label: "time", value: (_, each) => (each === null || each === undefined ? "–" : moment(each)) },
        ...series.map((each, number) => ({
          label: plain(each.label),
          stroke: COLOURS[number % COLOURS.length],
          width: 2,
          dash: DASHES[number % DASHES.length],
          spanGaps: false,
          points: { show: (plot) => plot.data[0].length < 40 },
        })),
      ],
    };
  }

  async function draw(place) {
    const answer = await fetch(place.dataset.samples, { credentials: "same-origin" });
    if (!answer.ok) return;
    const { times, series } = await answer.json();
    const data = [times, ...series.map((each) => each.values)];
    const labels = JSON.stringify(series.map((each) => each.label));
    if (place.plot && place.labels === labels) {
      place.plot.setData(data);
      return;
    }
    place.plot?.destroy();
    place.textContent = "";
    if (!series.length) {
      place.textContent = "No look has been made yet.";
      return;
    }
    place.labels = labels;
    place.plot = new uPlot(options(place, series), data, place);
  }

  function all() {
    document.querySelectorAll("[data-samples]").forEach((place) => { draw(place).catch(() => {}); });
  }

  function again() {
    document.querySelectorAll("[data-samples]").forEach((place) => { place.plot?.destroy(); place.plot = null; });
    all();
  }

  addEventListener("DOMContentLoaded", () => {
    all();
    if (document.querySelector("[data-samples]")) setInterval(all, EVERY_MS);
  });
  addEventListener("resize", () => {
    document.querySelectorAll("[data-samples]").forEach((place) => place.plot?.setSize({ width: place.clientWidth, height: 280 }));
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
})();
