//go:build !before212

package main

import (
	"context"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/admin"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
)

func newAdmin(given map[string]string) admin.Admin {
	resolver := primitive.NewPassthroughResolver([]string{given["ns"]})
	operator, err := admin.NewAdmin(admin.WithResolver(resolver), admin.WithCredentials(keys))
	must("admin", err)
	return operator
}

func administer(given map[string]string) {
	topic, background, operator := given["topic"], context.Background(), newAdmin(given)
	for _, one := range []string{topic + "Tx", topic + "Made"} {
		must("create topic", operator.CreateTopic(background, admin.WithTopicCreate(one), admin.WithBrokerAddrCreate(given["broker"])))
	}
	groups, err := operator.GetAllSubscriptionGroup(background, given["broker"], 3*time.Second)
	must("groups", err)
	write(line{"type": "fact", "name": "groups", "count": len(groups.SubscriptionGroupTable)})
	topics, err := operator.FetchAllTopicList(background)
	must("topics", err)
	write(line{"type": "fact", "name": "topics", "topics": topics.TopicList})
	must("delete topic", operator.DeleteTopic(background, admin.WithTopicDelete(topic+"Made"), admin.WithBrokerAddrDelete(given["broker"]),
		admin.WithNameSrvAddr([]string{given["ns"]})))
	operator.Close()
}

func pullAll(given map[string]string) {
	topic, group, background := given["topic"], given["group"], context.Background()
	resolver := primitive.NewPassthroughResolver([]string{given["ns"]})
	operator := newAdmin(given)
	pull, err := rocketmq.NewPullConsumer(consumer.WithGroupName(group+"-pull"), consumer.WithInstance("pull"), consumer.WithNsResolver(resolver),
		consumer.WithCredentials(keys))
	must("pull consumer", err)
	must("subscribe", pull.Subscribe(topic, consumer.MessageSelector{}))
	must("start", pull.Start())
	queues, err := operator.FetchPublishMessageQueues(background, topic)
	must("queues", err)
	for _, queue := range queues {
		offset := int64(0)
		for {
			r, err := pull.PullFrom(background, queue, offset, 32)
			must("pull", err)
			if r.Status == primitive.PullFound {
				for _, m := range r.GetMessageExts() {
					got("pull", m)
				}
			}
			offset = r.NextBeginOffset
			if offset >= r.MaxOffset { // another pull would be held
				break
			}
		}
		must("update", pull.UpdateOffset(queue, offset))
		write(line{"type": "fact", "name": "queue", "queueId": queue.QueueId, "max": offset})
	}
	must("persist", pull.PersistOffset(background, topic))
	pull.Shutdown()
	operator.Close()
}
