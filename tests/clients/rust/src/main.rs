//! round OUT.jsonl ns=ADDRESS topic=NAME group=NAME: all that an application does, by rocketmq-client-rust.
//! The lines are those that tests/support/client_programs.py describes. No blanks stand around `||`: the client hashes them, too.
#![recursion_limit = "512"]

use std::any::Any;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rocketmq_client_rust::{
    AclClientRPCHook, ClientError, ClientResult, ClientRuntime, ClientRuntimeConfig, ConsumeConcurrentlyContext,
    ConsumeConcurrentlyStatus, ConsumeOrderlyContext, ConsumeOrderlyStatus, DefaultLitePullConsumer, DefaultMQProducer,
    DefaultMQPushConsumer, LocalTransactionState, MQPushConsumer, MessageListenerConcurrently, MessageListenerOrderly,
    MessageSelector, SendResult, SendStatus, SessionCredentials, TransactionListener, TransactionMQProducer,
};
use rocketmq_model::common::consumer::consume_from_where::ConsumeFromWhere;
use rocketmq_model::common::message::message_ext::MessageExt;
use rocketmq_model::common::message::message_queue::MessageQueue;
use rocketmq_model::common::message::message_single::Message;
use rocketmq_model::common::message::MessageTrait;
use rocketmq_observability::TelemetryRuntimeGuard;
use rocketmq_runtime::RuntimeOwner;
use serde_json::{json, Value};

type Troubled = Box<dyn std::error::Error>;

/// What was written and seen, for all consumers and producers of the round.
struct Book {
    out: Mutex<File>,
    seen: Mutex<HashMap<&'static str, usize>>,
    failed: Mutex<HashSet<String>>,
}

impl Book {
    fn write(&self, line: Value) {
        writeln!(self.out.lock().unwrap(), "{line}").unwrap();
    }

    fn sent(&self, how: &str, body: &[u8], tags: &str, result: Option<&SendResult>) {
        let mut line = json!({"type": "sent", "how": how, "name": name(body), "bytes": body.len(), "tags": tags});
        if let Some(result) = result {
            let is_ok = result.send_status == SendStatus::SendOk;
            line["status"] = json!(if is_ok { "SEND_OK".into() } else { format!("{:?}", result.send_status) });
            line["queueId"] = json!(result.message_queue.as_ref().map(|queue| queue.queue_id()));
            line["queueOffset"] = json!(result.queue_offset);
            line["msgId"] = json!(result.msg_id.as_ref().map(|id| id.to_string()));
        }
        self.write(line);
    }

    fn got(&self, by: &'static str, message: &MessageExt) -> String {
        let body = MessageTrait::get_body(message.message_inner()).cloned().unwrap_or_default();
        let tags = message.get_tags().map(|tags| tags.to_string());
        self.write(json!({"type": "got", "by": by, "name": name(&body), "bytes": body.len(), "tags": tags,
            "queueId": message.queue_id(), "queueOffset": message.queue_offset(), "times": message.reconsume_times(),
            "msgId": message.msg_id().to_string()}));
        *self.seen.lock().unwrap().entry(by).or_default() += 1;
        name(&body)
    }

    fn count(&self, by: &str) -> usize {
        self.seen.lock().unwrap().get(by).copied().unwrap_or_default()
    }
}

fn name(body: &[u8]) -> String {
    String::from_utf8_lossy(body).split(':').next().unwrap().to_string()
}

struct Listener(Arc<Book>, &'static str);

impl MessageListenerConcurrently for Listener {
    fn consume_message(
        &self,
        messages: &[&MessageExt],
        _: &ConsumeConcurrentlyContext,
    ) -> ClientResult<ConsumeConcurrentlyStatus> {
        for message in messages {
            let name = self.0.got(self.1, message);
            if self.1 == "all" && name == "sync-5" && self.0.failed.lock().unwrap().insert(name) {
                return Ok(ConsumeConcurrentlyStatus::ReconsumeLater);
            }
        }
        Ok(ConsumeConcurrentlyStatus::ConsumeSuccess)
    }
}

impl MessageListenerOrderly for Listener {
    fn consume_message(
        &self,
        messages: &[&MessageExt],
        _: &mut ConsumeOrderlyContext,
    ) -> ClientResult<ConsumeOrderlyStatus> {
        for message in messages {
            self.0.got(self.1, message);
        }
        Ok(ConsumeOrderlyStatus::Success)
    }
}

struct Bookkeeper(Arc<Book>);

impl TransactionListener for Bookkeeper {
    fn execute_local_transaction(
        &self,
        message: &dyn MessageTrait,
        _: Option<&(dyn Any + Send + Sync)>,
    ) -> LocalTransactionState {
        match name(message.get_body().unwrap()).as_str() {
            "commit" => LocalTransactionState::CommitMessage,
            "rollback" => LocalTransactionState::RollbackMessage,
            _ => LocalTransactionState::Unknown,
        }
    }

    fn check_local_transaction(&self, message: &MessageExt) -> LocalTransactionState {
        let body = MessageTrait::get_body(message.message_inner()).cloned().unwrap_or_default();
        self.0.write(json!({"type": "asked", "name": name(&body)}));
        LocalTransactionState::CommitMessage
    }
}

struct Round {
    runtime: Arc<ClientRuntime>,
    book: Arc<Book>,
    given: HashMap<String, String>,
}

impl Round {
    fn topic(&self) -> &str {
        &self.given["topic"]
    }

    fn group(&self, name: &str) -> String {
        format!("{}-{name}", self.given["group"])
    }

    fn signature(&self) -> Option<Arc<AclClientRPCHook>> {
        let (key, secret) = (self.given.get("accessKey")?, self.given.get("secretKey")?);
        Some(Arc::new(AclClientRPCHook::new(SessionCredentials::with_keys(key.as_str(), secret.as_str()))))
    }

    fn message(&self, body: &str, tags: &str) -> Message {
        let message = Message::builder().topic(self.topic()).body_slice(body.as_bytes());
        if tags.is_empty() { message.build_unchecked() } else { message.tags(tags).build_unchecked() }
    }

    async fn send(&self) -> Result<DefaultMQProducer, Troubled> {
        let mut builder = DefaultMQProducer::builder(self.runtime.clone())
            .producer_group(self.group("producer"))
            .name_server_addr(self.given["ns"].as_str());
        if let Some(hook) = self.signature() {
            builder = builder.rpc_hook(hook);
        }
        let mut producer = builder.build();
        producer.start().await?;
        for number in 0..12 {
            let (body, tags) = (format!("sync-{number}"), ["TagA", "TagB", "TagC"][number % 3]);
            let message = Message::builder().topic(self.topic()).tags(tags).key(format!("key{number}"));
            let result = producer.send(message.body_slice(body.as_bytes()).build_unchecked()).await?;
            self.book.sent("sync", body.as_bytes(), tags, result.as_ref());
        }
        for number in 0..6 {
            let (book, body) = (self.book.clone(), format!("async-{number}"));
            let message = self.message(&body, "");
            let answered = move |result: Option<&SendResult>, error: Option<&ClientError>| {
                match error {
                    None => book.sent("async", body.as_bytes(), "", result),
                    Some(error) => book.write(json!({"type": "failed", "how": "async", "why": error.to_string()})),
                }
                *book.seen.lock().unwrap().entry("answers").or_default() += 1;
            };
            producer.send_with_callback(message, answered).await?;
        }
        self.wait(|| self.book.count("answers") >= 6, 20).await;
        for number in 0..3 {
            let body = format!("oneway-{number}");
            producer.send_oneway(self.message(&body, "")).await?;
            self.book.sent("oneway", body.as_bytes(), "", None);
        }
        let bodies: Vec<String> = (0..4).map(|number| format!("batch-{number}")).collect();
        let result = producer.send_batch(bodies.iter().map(|body| self.message(body, "")).collect()).await?;
        for body in &bodies {
            self.book.sent("batch", body.as_bytes(), "", None);
        }
        self.book.write(json!({"type": "fact", "name": "batch", "queueOffset": result.queue_offset}));
        for number in 0..6 {
            let body = format!("ordered-{number}");
            let second = |queues: &[MessageQueue], _: &Message, rank: &usize| queues.get(*rank).cloned();
            let result = producer.send_with_selector(self.message(&body, ""), second, 1_usize).await?;
            self.book.sent("ordered", body.as_bytes(), "", result.as_ref());
        }
        let large = format!("large:{}", "0123456789".repeat(9_000));
        let result = producer.send(self.message(&large, "")).await?;
        self.book.sent("large", large.as_bytes(), "", result.as_ref());
        let later = Message::builder().topic(self.topic()).body_slice(b"delayed").delay_level(1).build_unchecked();
        let result = producer.send(later).await?;
        self.book.sent("delayed", b"delayed", "", result.as_ref());
        Ok(producer)
    }

    async fn transact(&self) -> Result<TransactionMQProducer, Troubled> {
        let mut builder = TransactionMQProducer::builder(self.runtime.clone())
            .producer_group(self.group("tx"))
            .name_server_addr(self.given["ns"].as_str())
            .transaction_listener(Bookkeeper(self.book.clone()));
        if let Some(hook) = self.signature() {
            builder = builder.rpc_hook(hook);
        }
        let mut producer = builder.build();
        producer.start().await?;
        for body in ["commit", "rollback", "unknown"] {
            let topic = format!("{}Tx", self.topic());
            let message = Message::builder().topic(topic).body_slice(body.as_bytes()).build_unchecked();
            producer.send_message_in_transaction::<(), _>(message, None).await?;
            self.book.sent("transaction", body.as_bytes(), "", None);
        }
        Ok(producer)
    }

    async fn consume(
        &self,
        by: &'static str,
        topic: &str,
        selector: Option<MessageSelector>,
    ) -> Result<DefaultMQPushConsumer, Troubled> {
        let mut builder = DefaultMQPushConsumer::builder(self.runtime.clone())
            .consumer_group(self.group(by))
            .name_server_addr(self.given["ns"].as_str())
            .consume_from_where(ConsumeFromWhere::ConsumeFromFirstOffset);
        if let Some(hook) = self.signature() {
            builder = builder.rpc_hook(Some(hook));
        }
        let mut consumer = builder.build();
        match selector {
            Some(selector) => consumer.subscribe_with_selector(topic, Some(selector)).await?,
            None => consumer.subscribe(topic, if by == "tags" { "TagA||TagC" } else { "*" }).await?,
        }
        if by == "orderly" {
            consumer.register_message_listener_orderly(Listener(self.book.clone(), by));
        } else {
            consumer.register_message_listener_concurrently(Listener(self.book.clone(), by));
        }
        consumer.start().await?;
        Ok(consumer)
    }

    async fn pull(&self) -> Result<(), Troubled> {
        let mut builder = DefaultLitePullConsumer::builder(self.runtime.clone())
            .consumer_group(self.group("pull"))
            .name_server_addr(self.given["ns"].as_str())
            .auto_commit(false);
        if let Some(hook) = self.signature() {
            builder = builder.rpc_hook(hook);
        }
        let consumer = builder.build()?;
        consumer.start().await?;
        let queues = consumer.fetch_message_queues(self.topic()).await?;
        consumer.assign(queues.clone()).await?;
        let mut ends = 0;
        for queue in &queues {
            consumer.seek(queue, 0).await?;
            let end = consumer.max_offset(queue).await?;
            ends += end as usize;
            self.book.write(json!({"type": "fact", "name": "queue", "queueId": queue.queue_id(), "max": end}));
        }
        let until = Instant::now() + Duration::from_secs(30);
        while self.book.count("pull") < ends && Instant::now() < until {
            for message in consumer.poll_with_timeout(500).await {
                self.book.got("pull", &message);
            }
        }
        consumer.commit_all().await?;
        consumer.shutdown().await;
        Ok(())
    }

    async fn wait(&self, is_met: impl Fn() -> bool, seconds: u64) {
        let until = Instant::now() + Duration::from_secs(seconds);
        while !is_met() && Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    async fn run(&self) -> Result<(), Troubled> {
        let mut producer = self.send().await?;
        let mut transactions = self.transact().await?;
        let topic = self.topic();
        let mut consumers = vec![
            self.consume("all", topic, None).await?,
            self.consume("tags", topic, None).await?,
            self.consume("orderly", topic, None).await?,
            self.consume("transactions", &format!("{topic}Tx"), None).await?,
        ];
        if self.given.contains_key("sql") {
            consumers.push(self.consume("sql", topic, Some(MessageSelector::by_sql("TAGS = 'TagB'"))).await?);
        }
        self.pull().await?;
        let wanted = [("all", 34), ("tags", 8), ("orderly", 33), ("transactions", 2)];
        self.wait(|| wanted.iter().all(|(by, count)| self.book.count(by) >= *count), 60).await;
        tokio::time::sleep(Duration::from_millis(6_000)).await; // offsets are sent each 5 s
        for consumer in &mut consumers {
            consumer.shutdown().await;
        }
        transactions.shutdown().await;
        producer.shutdown().await;
        Ok(())
    }
}

fn main() -> Result<(), Troubled> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let pairs = words[1..].iter().filter_map(|word| word.split_once('='));
    let book = Arc::new(Book {
        out: Mutex::new(File::create(&words[0])?),
        seen: Mutex::default(),
        failed: Mutex::default(),
    });
    let owner = RuntimeOwner::new()?;
    let telemetry = TelemetryRuntimeGuard::noop();
    let scope = owner.root_context().component("round");
    let runtime = ClientRuntime::try_new(scope, ClientRuntimeConfig::default(), telemetry.handle())?;
    let given = pairs.map(|(name, value)| (name.to_string(), value.to_string())).collect();
    let round = Round { runtime, book: book.clone(), given };
    let result = owner.block_on(round.run());
    if let Err(error) = &result {
        book.write(json!({"type": "failed", "how": "round", "why": error.to_string()}));
    } else {
        book.write(json!({"type": "done"}));
    }
    std::process::exit(i32::from(result.is_err()));
}
