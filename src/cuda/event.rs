//! Events: positions in streams, to be waited for and to measure between.

use super::api::driver::{EventHandle, Fault};
use super::context::Context;
use std::sync::Arc;

/// A position in a stream, once it was recorded there. May be recorded again.
pub struct Event {
    pub(super) context: Arc<Context>,
    pub(super) handle: EventHandle,
}

/// A name of an event or of an allocation that another process of this machine can open.
pub type ProcessHandle = [u8; 64];

impl Event {
    /// An event that takes the time when it is reached.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn timed(context: &Arc<Context>) -> Result<Event, Fault> {
        Event::create(context, true, false)
    }

    /// An event to be waited for only, which is cheaper.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn untimed(context: &Arc<Context>) -> Result<Event, Fault> {
        Event::create(context, false, false)
    }

    /// An untimed event that another process can open, and its name.
    ///
    /// # Errors
    /// The driver refuses: events are not shared on this system.
    pub fn shared(context: &Arc<Context>) -> Result<(Event, ProcessHandle), Fault> {
        let event = Event::create(context, false, true)?;
        let name = context.api.export_event(event.handle)?;
        Ok((event, name))
    }

    /// The event that another process made and named.
    ///
    /// # Errors
    /// The driver refuses: the process is gone, or this one.
    pub fn open(context: &Arc<Context>, name: ProcessHandle) -> Result<Event, Fault> {
        context.make_current()?;
        Ok(Event { context: context.clone(), handle: context.api.import_event(name)? })
    }

    fn create(context: &Arc<Context>, timed: bool, interprocess: bool) -> Result<Event, Fault> {
        context.make_current()?;
        Ok(Event { context: context.clone(), handle: context.api.create_event(timed, interprocess)? })
    }

    /// Whether it was reached; true also before it is first recorded.
    ///
    /// # Errors
    /// Something enqueued before it failed.
    pub fn is_done(&self) -> Result<bool, Fault> {
        self.context.api.is_event_done(self.handle)
    }

    /// Waits on the host until it is reached.
    ///
    /// # Errors
    /// Something enqueued before it failed.
    pub fn synchronize(&self) -> Result<(), Fault> {
        self.context.api.synchronize_event(self.handle)
    }

    /// Nanoseconds from `since` to this event; both timed, reached, and of one context. The driver answers in float32
    /// milliseconds, which are exact to 60 ns over a second and to 1 µs over sixteen: measure from a recent event.
    ///
    /// # Errors
    /// One of the events was not recorded, not reached, or takes no time.
    pub fn elapsed_ns(&self, since: &Event) -> Result<f64, Fault> {
        Ok(f64::from(self.context.api.elapsed_ms(since.handle, self.handle)?) * 1e6)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let _ = self.context.api.destroy_event(self.handle);
    }
}
