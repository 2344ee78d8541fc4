//! Links: how messages get from one device to another. What a link must do is one trait; which there are, who may use them,
//! what they deliver and what they need is one table.

mod local;
mod need;
mod table;

pub use local::Local;
pub use need::{Refusal, Setting};
pub use table::{LINKS, LinkKind};

use super::mailbox::Message;
use anyhow::Result;
use std::collections::BTreeMap;

/// A device's end of the way to the others. Between GPUs calls only enqueue, unless they say so: "now" is then where the compute
/// stream comes to what is enqueued next.
pub trait Link: Send {
    /// Where a message lies.
    type Place;
    /// A moment of the device, to be read when the step is over.
    type Moment;

    /// Called by the device's thread at the start of each step, when nothing is enqueued; may wait for other devices.
    fn begin(&mut self) -> Result<()> {
        Ok(())
    }

    /// Where the message is to be written from now on.
    fn outbox(&mut self, message: Message) -> Result<Self::Place>;

    /// Sends what is in the outbox now, as soon as the delivery allows it.
    fn put(&mut self, message: Message) -> Result<()>;

    /// Waits for the message; where it lies. Of an exchange both sides put first.
    fn wait(&mut self, message: Message) -> Result<Self::Place>;

    /// The message is not needed any more.
    fn release(&mut self, message: Message) -> Result<()>;

    /// Takes out when each message that an op made left, from its put's beginning to its end, by the op. Empty where a put is
    /// over when the call is.
    fn sent(&mut self) -> BTreeMap<usize, [Self::Moment; 2]> {
        BTreeMap::new()
    }

    /// Ends whatever is under way, without waiting for it: a device failed, here or elsewhere.
    fn abort(&mut self) {}

    /// Whether all that is enqueued on streams of its own is done; an error where it cannot complete any more.
    fn is_done(&mut self) -> Result<bool> {
        Ok(true)
    }
}
