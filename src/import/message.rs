//! Messages between ranks: which send belongs to which receive, and what they say about clocks.

use super::clock::Bound;
use super::pipeline::Pipeline;
use super::rank::{RankOp, RankStep};
use pipesim_schedule::op::{Kind, Op};
use std::collections::BTreeMap;

/// The steps of all devices with the same number.
pub struct Step<'a> {
    pub number: u64,
    /// By device; `None` where the trace lacks the step.
    pub ranks: Vec<Option<&'a RankStep>>,
}

/// A message whose two ends are recorded, with times on the clocks of the two devices.
#[derive(Clone, Copy, Debug)]
pub struct Message {
    pub sender: u32,
    pub receiver: u32,
    /// The op whose output is sent.
    pub producer: Op,
    /// The op that waits for it.
    pub consumer: Op,
    /// When it was sent, on the sender's clock.
    pub sent: i64,
    /// When the send was known to be complete, on the sender's clock, if that is recorded.
    pub sent_done: Option<i64>,
    /// When the receive was posted, on the receiver's clock.
    pub posted: i64,
    /// When the receiver went on, on its clock.
    pub received: i64,
}

/// Ops of a step by op, with their devices.
pub type OpTable<'a> = BTreeMap<(bool, u32, u32), (u32, &'a RankOp)>;

impl Step<'_> {
    /// Returns the forwards and backwards by (is a backward, stage, micro-batch).
    pub fn table(&self) -> OpTable<'_> {
        let mut table = OpTable::new();
        for (device, rank) in (0..).zip(&self.ranks) {
            for op in rank.iter().flat_map(|rank| &rank.ops).filter(|op| op.op.kind() != Kind::W) {
                table.insert((op.op.kind().is_backward(), op.op.stage(), op.op.microbatch()), (device, op));
            }
        }
        table
    }

    /// Returns the recorded messages, and the number that should be there between devices with a file.
    pub fn messages(&self, pipeline: &Pipeline) -> (Vec<Message>, usize) {
        let (table, mut found, mut expected) = (self.table(), Vec::new(), 0);
        for (&(backward, _, microbatch), &(receiver, consumer)) in &table {
            let Some((sender, stage)) = pipeline.source(consumer.op) else { continue };
            if sender == receiver || self.ranks[sender as usize].is_none() {
                continue;
            }
            expected += 1;
            let producer = table.get(&(backward, stage, microbatch));
            let (Some((_, producer)), Some((posted, received))) = (producer, consumer.receive) else { continue };
            let Some((sent, sent_done)) = producer.send else { continue };
            let (producer, consumer) = (producer.op, consumer.op);
            found.push(Message { sender, receiver, producer, consumer, sent, sent_done, posted, received });
        }
        (found, expected)
    }

    /// Returns what messages through a device without a file say: the data left one side before it reached the other.
    pub fn through_missing(&self, pipeline: &Pipeline) -> Vec<(u32, u32, i64, i64)> {
        let (table, mut found) = (self.table(), Vec::new());
        for (&(backward, _, microbatch), &(receiver, consumer)) in &table {
            let Some((_, received)) = consumer.receive else { continue };
            let Some((mut device, mut stage)) = pipeline.source(consumer.op) else { continue };
            if self.ranks[device as usize].is_some() {
                continue;
            }
            while self.ranks[device as usize].is_none() {
                let Some(source) = pipeline.source(consumer.op.on_stage(stage)) else { break };
                (device, stage) = source;
            }
            let Some(&(sender, producer)) = table.get(&(backward, stage, microbatch)) else { continue };
            if let (Some((sent, _)), true) = (producer.send, sender != receiver) {
                found.push((sender, receiver, sent, received));
            }
        }
        found
    }
}

impl Message {
    /// Returns the inequalities of the message: no data before it is sent; no send is complete before its receive is posted.
    pub fn bounds(&self, step: usize) -> impl Iterator<Item = Bound> {
        let (sender, receiver) = (self.sender as usize, self.receiver as usize);
        let data = Bound { from: sender, to: receiver, before: self.sent, after: self.received, step };
        let posted = self.posted;
        let complete =
            self.sent_done.map(|done| Bound { from: receiver, to: sender, before: posted, after: done, step });
        [Some(data), complete].into_iter().flatten()
    }
}
