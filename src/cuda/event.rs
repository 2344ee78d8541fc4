//! Events: positions in streams, to be waited for and to measure between; and the pool that a GPU's events come from.

use super::api::driver::{EventHandle, Fault};
use super::context::Context;
use std::sync::{Arc, Mutex, PoisonError};

/// A position in a stream, once it was recorded there. May be recorded again.
pub struct Event {
    pub(super) context: Arc<Context>,
    pub(super) handle: EventHandle,
    /// Where it goes when it is dropped, and whether it takes times; events that processes share go nowhere.
    home: Option<(Arc<Events>, bool)>,
}

/// A name of an event or of an allocation that another process of this machine can open.
pub type ProcessHandle = [u8; 64];

/// The events of one GPU, or of a slice of one: made when first needed, and given out again once they are dropped.
pub struct Events {
    context: Arc<Context>,
    /// Those that nobody has: without times, with times.
    spare: [Mutex<Vec<EventHandle>>; 2],
}

impl Events {
    pub(super) fn new(context: &Arc<Context>) -> Arc<Events> {
        Arc::new(Events { context: context.clone(), spare: Default::default() })
    }

    /// An event that takes the time when it is reached.
    pub fn timed(self: &Arc<Events>) -> Result<Event, Fault> {
        self.take(true)
    }

    /// An event to be waited for only, which is cheaper.
    pub fn untimed(self: &Arc<Events>) -> Result<Event, Fault> {
        self.take(false)
    }

    /// Has so many timed events at hand, so that none is made in a step.
    pub fn reserve(&self, count: usize) -> Result<(), Fault> {
        while self.spare(true).len() < count {
            let event = self.make(true)?;
            self.spare(true).push(event);
        }
        Ok(())
    }

    fn take(self: &Arc<Events>, timed: bool) -> Result<Event, Fault> {
        let spare = self.spare(timed).pop();
        let handle = spare.map_or_else(|| self.make(timed), Ok)?;
        Ok(Event { context: self.context.clone(), handle, home: Some((self.clone(), timed)) })
    }

    fn make(&self, timed: bool) -> Result<EventHandle, Fault> {
        self.context.make_current()?;
        self.context.api.create_event(timed, false)
    }

    fn spare(&self, timed: bool) -> std::sync::MutexGuard<'_, Vec<EventHandle>> {
        self.spare[usize::from(timed)].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        for event in [false, true].into_iter().flat_map(|timed| std::mem::take(&mut *self.spare(timed))) {
            let _ = self.context.api.destroy_event(event);
        }
    }
}

impl Event {
    /// An untimed event that another process can open, and its name.
    ///
    /// # Errors
    /// The driver refuses: events are not shared on this system.
    pub fn shared(context: &Arc<Context>) -> Result<(Event, ProcessHandle), Fault> {
        context.make_current()?;
        let handle = context.api.create_event(false, true)?;
        let event = Event { context: context.clone(), handle, home: None };
        let name = context.api.export_event(handle)?;
        Ok((event, name))
    }

    /// The event that another process made and named.
    pub fn open(context: &Arc<Context>, name: ProcessHandle) -> Result<Event, Fault> {
        context.make_current()?;
        Ok(Event { context: context.clone(), handle: context.api.import_event(name)?, home: None })
    }

    /// Whether it was reached; true also before it is first recorded.
    pub fn is_done(&self) -> Result<bool, Fault> {
        self.context.api.is_event_done(self.handle)
    }

    /// Waits on the host until it is reached.
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
        match &self.home {
            Some((home, timed)) => home.spare(*timed).push(self.handle),
            None => {
                let _ = self.context.api.destroy_event(self.handle);
            }
        }
    }
}
