// go run . OUT.jsonl ns=ADDRESS topic=NAME group=NAME: all that an application does, by Apache's Go client.
// The lines are those that tests/support/client_programs.py describes. since212.go has what releases before 2.1.2 have not.
// With leave=COUNT it does something else: see leave.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

type line map[string]interface{}

var (
	out    *os.File
	mutex  sync.Mutex
	failed = map[string]bool{}
	keys   = primitive.Credentials{}
	seen   = map[string]int{}
)

func write(one line) {
	mutex.Lock()
	defer mutex.Unlock()
	text, _ := json.Marshal(one)
	out.Write(append(text, '\n'))
}

func must(what string, err error) {
	if err != nil {
		write(line{"type": "failed", "how": what, "why": err.Error()})
		fmt.Fprintln(os.Stderr, what, err)
		os.Exit(1)
	}
}

func name(body []byte) string { return strings.SplitN(string(body), ":", 2)[0] }

func sent(how string, m *primitive.Message, r *primitive.SendResult) {
	one := line{"type": "sent", "how": how, "name": name(m.Body), "bytes": len(m.Body)}
	if r != nil {
		one["tags"], one["msgId"], one["offsetMsgId"] = m.GetTags(), r.MsgID, r.OffsetMsgID
		one["queueId"], one["queueOffset"] = r.MessageQueue.QueueId, r.QueueOffset
		one["status"] = map[primitive.SendStatus]string{primitive.SendOK: "SEND_OK"}[r.Status]
	}
	write(one)
}

func count(by string) int {
	mutex.Lock()
	defer mutex.Unlock()
	return seen[by]
}

func got(by string, m *primitive.MessageExt) {
	mutex.Lock()
	seen[by]++
	mutex.Unlock()
	write(line{"type": "got", "by": by, "name": name(m.Body), "bytes": len(m.Body), "tags": m.GetTags(), "queueId": m.Queue.QueueId,
		"queueOffset": m.QueueOffset, "times": m.ReconsumeTimes, "msgId": m.MsgId})
}

func isFirst(which string) bool {
	mutex.Lock()
	defer mutex.Unlock()
	first := !failed[which]
	failed[which] = true
	return first
}

func push(servers []string, group, topic string, selector consumer.MessageSelector, by string, more ...consumer.Option) rocketmq.PushConsumer {
	options := append([]consumer.Option{
		consumer.WithGroupName(group), consumer.WithInstance(group), consumer.WithNsResolver(primitive.NewPassthroughResolver(servers)),
		consumer.WithCredentials(keys), consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
	}, more...)
	c, err := rocketmq.NewPushConsumer(options...)
	must("push consumer "+by, err)
	err = c.Subscribe(topic, selector, func(ctx context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, m := range messages {
			got(by, m)
			if by == "all" && name(m.Body) == "sync-5" && isFirst("sync-5") {
				if concurrent, found := primitive.GetConcurrentlyCtx(ctx); found {
					concurrent.DelayLevelWhenNextConsume = 1
				}
				return consumer.ConsumeRetryLater, nil
			}
		}
		return consumer.ConsumeSuccess, nil
	})
	must("subscribe "+by, err)
	must("start "+by, c.Start())
	return c
}

type bookkeeper struct{}

func (bookkeeper) ExecuteLocalTransaction(m *primitive.Message) primitive.LocalTransactionState {
	return map[string]primitive.LocalTransactionState{"commit": primitive.CommitMessageState, "rollback": primitive.RollbackMessageState,
		"unknown": primitive.LocalTransactionState(3)}[name(m.Body)]
}

func (bookkeeper) CheckLocalTransaction(m *primitive.MessageExt) primitive.LocalTransactionState {
	write(line{"type": "asked", "name": name(m.Body)})
	return primitive.CommitMessageState
}

// leave sends 12 messages, and has so many consumers, each of a group of its own, get them all and shut down at once.
func leave(servers []string, topic, group string, rounds int) {
	p, err := rocketmq.NewProducer(producer.WithNsResolver(primitive.NewPassthroughResolver(servers)), producer.WithGroupName(group+"-producer"),
		producer.WithQueueSelector(producer.NewRoundRobinQueueSelector()))
	must("producer", err)
	must("start", p.Start())
	for i := 0; i < 12; i++ {
		_, err := p.SendSync(context.Background(), primitive.NewMessage(topic, []byte(fmt.Sprintf("left-%d", i))))
		must("sync", err)
	}
	var waiting sync.WaitGroup
	for i := 0; i < rounds; i++ {
		waiting.Add(1)
		go func(i int) {
			by := fmt.Sprintf("%s-%d", group, i)
			c := push(servers, by, topic, consumer.MessageSelector{}, by, consumer.WithConsumerOrder(i%2 == 1))
			for j := 0; j < 300 && count(by) < 12; j++ {
				time.Sleep(100 * time.Millisecond) // the last result is noted meanwhile
			}
			must("shut down "+by, c.Shutdown())
			waiting.Done()
		}(i)
	}
	waiting.Wait()
	must("shut down", p.Shutdown())
}

func main() {
	given := map[string]string{}
	for _, word := range os.Args[2:] {
		pair := strings.SplitN(word, "=", 2)
		given[pair[0]] = pair[1]
	}
	out, _ = os.Create(os.Args[1])
	keys = primitive.Credentials{AccessKey: given["accessKey"], SecretKey: given["secretKey"]}
	rlog.SetLogLevel("warn")
	servers, topic, group := []string{given["ns"]}, given["topic"], given["group"]
	resolver := primitive.NewPassthroughResolver(servers)
	background := context.Background()

	if given["leave"] != "" {
		rounds, err := strconv.Atoi(given["leave"])
		must("leave", err)
		leave(servers, topic, group, rounds)
		write(line{"type": "done"})
		os.Exit(0)
	}
	administer(given)

	p, err := rocketmq.NewProducer(producer.WithNsResolver(resolver), producer.WithCredentials(keys), producer.WithGroupName(group+"-producer"), producer.WithRetry(2),
		producer.WithQueueSelector(producer.NewRoundRobinQueueSelector()))
	must("producer", err)
	must("start", p.Start())
	tags := []string{"TagA", "TagB", "TagC"}
	for i := 0; i < 12; i++ {
		m := primitive.NewMessage(topic, []byte(fmt.Sprintf("sync-%d", i))).WithTag(tags[i%3]).WithKeys([]string{fmt.Sprintf("key%d", i)})
		r, err := p.SendSync(background, m)
		must("sync", err)
		sent("sync", m, r)
	}
	var waiting sync.WaitGroup
	for i := 0; i < 6; i++ {
		waiting.Add(1)
		m := primitive.NewMessage(topic, []byte(fmt.Sprintf("async-%d", i)))
		must("async", p.SendAsync(background, func(ctx context.Context, r *primitive.SendResult, err error) {
			must("async", err)
			sent("async", m, r)
			waiting.Done()
		}, m))
	}
	waiting.Wait()
	for i := 0; i < 3; i++ {
		m := primitive.NewMessage(topic, []byte(fmt.Sprintf("oneway-%d", i)))
		must("oneway", p.SendOneWay(background, m))
		sent("oneway", m, nil)
	}
	batch := []*primitive.Message{}
	for i := 0; i < 4; i++ {
		batch = append(batch, primitive.NewMessage(topic, []byte(fmt.Sprintf("batch-%d", i))))
	}
	ofBatch, err := p.SendSync(background, batch...)
	must("batch", err)
	for _, m := range batch {
		sent("batch", m, nil)
	}
	write(line{"type": "fact", "name": "batch", "status": "SEND_OK", "queueOffset": ofBatch.QueueOffset, "queueId": ofBatch.MessageQueue.QueueId})
	must("shut down", p.Shutdown())

	p, err = rocketmq.NewProducer(producer.WithNsResolver(resolver), producer.WithCredentials(keys), producer.WithGroupName(group+"-ordered"), producer.WithInstanceName("ordered"),
		producer.WithQueueSelector(producer.NewHashQueueSelector()))
	must("producer", err)
	must("start", p.Start())
	for i := 0; i < 6; i++ {
		m := primitive.NewMessage(topic, []byte(fmt.Sprintf("ordered-%d", i))).WithShardingKey("one")
		r, err := p.SendSync(background, m)
		must("ordered", err)
		sent("ordered", m, r)
	}
	large := primitive.NewMessage(topic, []byte("large:"+strings.Repeat("0123456789", 9000)))
	r, err := p.SendSync(background, large)
	must("large", err)
	sent("large", primitive.NewMessage(topic, []byte("large:"+strings.Repeat("0123456789", 9000))), r)
	later := primitive.NewMessage(topic, []byte("delayed")).WithDelayTimeLevel(1)
	r, err = p.SendSync(background, later)
	must("delayed", err)
	sent("delayed", later, r)

	transactions, err := rocketmq.NewTransactionProducer(bookkeeper{}, producer.WithNsResolver(resolver), producer.WithCredentials(keys), producer.WithGroupName(group+"-tx"),
		producer.WithInstanceName("tx"))
	must("transaction producer", err)
	must("start", transactions.Start())
	for _, plan := range []string{"commit", "rollback", "unknown"} {
		m := primitive.NewMessage(topic+"Tx", []byte(plan))
		r, err := transactions.SendMessageInTransaction(background, m)
		must("transaction", err)
		sent("transaction", m, r.SendResult)
	}

	consumers := []rocketmq.PushConsumer{
		push(servers, group+"-all", topic, consumer.MessageSelector{}, "all"),
		push(servers, group+"-tags", topic, consumer.MessageSelector{Type: consumer.TAG, Expression: "TagA || TagC"}, "tags"),
		push(servers, group+"-transactions", topic+"Tx", consumer.MessageSelector{}, "transactions"),
		push(servers, group+"-orderly", topic, consumer.MessageSelector{}, "orderly", consumer.WithConsumerOrder(true)),
	}
	if given["sql"] == "true" {
		consumers = append(consumers, push(servers, group+"-sql", topic, consumer.MessageSelector{Type: consumer.SQL92, Expression: "TAGS = 'TagB'"}, "sql"))
	}

	pullAll(given)

	for i := 0; i < 600 && !(count("all") >= 34 && count("tags") >= 8 && count("orderly") >= 33 && count("transactions") >= 2); i++ {
		time.Sleep(100 * time.Millisecond) // routes of retry topics are asked for each 30 s
	}
	time.Sleep(1500 * time.Millisecond)
	for _, c := range consumers {
		c.Shutdown()
	}
	transactions.Shutdown()
	p.Shutdown()
	write(line{"type": "done"})
	os.Exit(0)
}
