//! Sends and receives of one rank, as the host posted and completed them.

use super::event::{Class, Event};

/// One send or receive, in ns of the rank's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// When it was posted.
    pub posted: i64,
    /// When somebody who waited for it went on.
    pub done: Option<i64>,
}

/// The sends and receives of a rank, by the time at which they were posted.
#[derive(Clone, Debug, Default)]
pub struct Exchanges {
    pub sends: Vec<Exchange>,
    pub receives: Vec<Exchange>,
}

/// A gloo range starts within the call that posts it, or a little later.
const SLACK_NS: i64 = 1_000_000;

impl Exchanges {
    pub fn of(events: &[Event]) -> Exchanges {
        Exchanges {
            sends: exchanges(events, Class::Send, Class::SendDone),
            receives: exchanges(events, Class::Receive, Class::ReceiveDone),
        }
    }
}

/// Pairs each call with the range that begins in it, before the next call.
fn exchanges(events: &[Event], posts: Class, dones: Class) -> Vec<Exchange> {
    let of = |class| events.iter().filter(move |event: &&Event| event.class == class);
    let posted: Vec<&Event> = of(posts).collect();
    let mut done = of(dones).peekable();
    let mut found = Vec::with_capacity(posted.len());
    for (number, post) in posted.iter().enumerate() {
        let next = posted.get(number + 1).map_or(i64::MAX, |next| next.start);
        while done.next_if(|done| done.start < post.start).is_some() {}
        let own = done.next_if(|done| done.start < next && done.start - post.end < SLACK_NS);
        found.push(Exchange { posted: post.start, done: own.map(|done| done.end) });
    }
    found
}
