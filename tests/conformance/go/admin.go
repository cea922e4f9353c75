package main

import (
	"context"
	"sort"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
)

func (d *driver) registerAdmin() {
	d.operations["list_offsets"] = parsed(d.listOffsets)
	d.operations["list_transactions"] = parsed(d.listTransactions)
	d.operations["describe_transactions"] = parsed(d.describeTransactions)
	d.operations["describe_producers"] = parsed(d.describeProducers)
	d.operations["group_offsets"] = parsed(d.groupOffsets)
}

type offsetsAsked struct {
	Places    [][]any `json:"places"`
	Isolation string  `json:"isolation"`
}

func (d *driver) listOffsets(a offsetsAsked) (any, error) {
	special := map[any]int64{"latest": -1, "earliest": -2, "max_timestamp": -3}
	found := [][]any{}
	for _, asked := range a.Places {
		topic, partition := asked[0].(string), int32(asked[1].(float64))
		at, known := special[asked[2]]
		if !known {
			at = int64(asked[2].(float64))
		}
		offset, timestamp, err := d.listed(topic, partition, at, isolationLevel(a.Isolation))
		if err != nil {
			found = append(found, []any{topic, partition, name(err), nil})
		} else {
			found = append(found, []any{topic, partition, offset, timestamp})
		}
	}
	return sorted(found), nil
}

func (d *driver) listTransactions(a struct {
	Prefix string `json:"prefix"`
}) (any, error) {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	listed, err := d.admin.ListTransactions(ctx, nil, nil)
	if err != nil {
		return nil, err
	}
	found := [][]any{}
	for _, one := range listed.Sorted() {
		if strings.HasPrefix(one.TxnID, a.Prefix) {
			found = append(found, []any{one.TxnID, one.State})
		}
	}
	return sorted(found), nil
}

func (d *driver) describeTransactions(a struct {
	Names []string `json:"names"`
}) (any, error) {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	described, err := d.admin.DescribeTransactions(ctx, a.Names...)
	if err != nil {
		return nil, err
	}
	found := map[string]any{}
	for id, one := range described {
		if one.Err != nil {
			found[id] = name(one.Err)
			continue
		}
		partitions := [][]any{}
		for _, topic := range one.Topics.Sorted() {
			for _, partition := range topic.Partitions {
				partitions = append(partitions, []any{topic.Topic, partition})
			}
		}
		found[id] = map[string]any{
			"state": one.State, "timeout_ms": one.TimeoutMillis, "open": one.StartTimestamp >= 0,
			"partitions": sorted(partitions),
		}
	}
	return found, nil
}

func (d *driver) describeProducers(a place) (any, error) {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	asked := kadm.TopicsSet{}
	asked.Add(a.Topic, a.Partition)
	described, err := d.admin.DescribeProducers(ctx, asked)
	if err != nil {
		return nil, err
	}
	found := [][]any{}
	producers := described.SortedProducers()
	sort.Slice(producers, func(i, j int) bool {
		a, b := producers[i], producers[j]
		if a.LastSequence != b.LastSequence {
			return a.LastSequence < b.LastSequence
		}
		return a.CurrentTxnStartOffset < b.CurrentTxnStartOffset
	})
	for _, one := range producers {
		found = append(found, []any{one.LastSequence, orNone(one.CurrentTxnStartOffset)})
	}
	return found, nil
}

func (d *driver) groupOffsets(a struct {
	Group string `json:"group"`
}) (any, error) {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	fetched, err := d.admin.FetchOffsets(ctx, a.Group)
	if err != nil {
		return nil, err
	}
	found := [][]any{}
	for _, one := range fetched.Sorted() {
		if one.Err != nil {
			return nil, one.Err
		}
		found = append(found, []any{one.Topic, one.Partition, one.At, one.Metadata})
	}
	return sorted(found), nil
}
