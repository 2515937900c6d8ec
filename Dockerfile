# syntax=docker/dockerfile:1
# The command spark-mq: a broker, a name server, a controller, and every other command. Target `spark` adds Java and PySpark.

FROM python:3.13-slim-bookworm AS wheels
WORKDIR /source
COPY . .
RUN pip wheel --no-cache-dir --wheel-dir /wheels .

FROM wheels AS spark-wheels
RUN pip wheel --no-cache-dir --wheel-dir /wheels --find-links /wheels '.[spark]'

FROM python:3.13-slim-bookworm AS commands
# hadolint ignore=DL3013
RUN --mount=type=bind,from=wheels,source=/wheels,target=/wheels \
    pip install --no-cache-dir --no-index --find-links /wheels spark_mq \
    && useradd --uid 10001 --no-create-home --home-dir /data spark-mq \
    && install --directory --owner 10001 --group 10001 /data
COPY docker/healthy.py /usr/local/lib/spark-mq/healthy.py
# Without settings a server keeps its files in the home directory: a broker its store in /data/store.
ENV HOME=/data PYTHONUNBUFFERED=1
USER 10001
WORKDIR /data
VOLUME /data
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s CMD ["python", "/usr/local/lib/spark-mq/healthy.py"]
ENTRYPOINT ["spark-mq"]
CMD ["--help"]

FROM commands AS spark
USER 0
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends openjdk-17-jre-headless procps \
    && rm -rf /var/lib/apt/lists/*
# hadolint ignore=DL3013
RUN --mount=type=bind,from=spark-wheels,source=/wheels,target=/wheels \
    pip install --no-cache-dir --no-index --find-links /wheels 'spark_mq[spark]'
USER 10001
HEALTHCHECK NONE
ENTRYPOINT ["python"]

FROM commands
