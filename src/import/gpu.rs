//! Times of ops on a GPU: the range on the host only launches them.

use super::event::{Class, Event};
use super::rank::RankStep;
use std::collections::BTreeMap;

/// Replaces host times by the times of the work that was launched within them, attributed by time and not by thread: autograd launches
/// the backward from a thread of its own. Does nothing for a trace without GPU work.
pub fn measure(events: &[Event], steps: &mut [RankStep], file: &str, warnings: &mut Vec<String>) {
    let mut work: BTreeMap<u64, (i64, i64, bool)> = BTreeMap::new();
    for event in events {
        match event.class {
            Class::Kernel(id) => drop(work.insert(id, (event.start, event.end, false))),
            Class::Transfer(id) => drop(work.insert(id, (event.start, event.end, true))),
            _ => {}
        }
    }
    if work.is_empty() {
        return;
    }
    let launches: Vec<(i64, u64)> = events
        .iter()
        .filter_map(|event| match event.class {
            Class::Launch(id) if work.contains_key(&id) => Some((event.start, id)),
            _ => None,
        })
        .collect();
    if launches.len() < work.len() {
        warnings.push(format!("{file}: {} of {} GPU events have no launch", work.len() - launches.len(), work.len()));
    }
    let launched = |from: i64, to: i64, is_transfer: bool| {
        let range =
            launches.partition_point(|(time, _)| *time < from)..launches.partition_point(|(time, _)| *time < to);
        let range = if range.start <= range.end { &launches[range] } else { &[] };
        let inside = range.iter().filter_map(|(_, id)| work.get(id)).filter(move |found| found.2 == is_transfer);
        inside.fold(None, |all: Option<(i64, i64)>, &(start, end, _)| {
            Some(all.map_or((start, end), |(first, last)| (first.min(start), last.max(end))))
        })
    };
    let mut without = 0;
    for step in steps {
        step.ops.sort_by_key(|op| op.start);
        let mut free = None;
        for op in &mut step.ops {
            let host = (op.ready, op.end);
            match launched(host.0, host.1, false) {
                Some((start, end)) => (op.start, op.end) = (start, end),
                None => {
                    without += 1;
                    op.start = free.unwrap_or(op.start);
                    op.end = op.start;
                }
            }
            op.receive = op.receive.and_then(|(posted, done)| launched(posted, done.max(posted + 1), true));
            op.send = op.send.and_then(|(posted, done)| {
                let (start, end) = launched(posted, done?.max(posted + 1), true)?;
                Some((start, Some(end)))
            });
            op.ready = op.receive.map_or(op.start, |(_, done)| done.min(op.start)).min(op.start);
            free = Some(op.end);
        }
        for (_, start, end) in &mut step.others {
            if let Some((first, last)) = launched(*start, *end, false).or_else(|| launched(*start, *end, true)) {
                (*start, *end) = (first, last);
            }
        }
    }
    if without > 0 {
        warnings.push(format!("{file}: {without} ops launched nothing on the GPU and take no time"));
    }
}
