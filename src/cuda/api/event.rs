//! Events: positions in streams, to be waited for and to measure between; and the pool that a GPU's events come from.

use super::context::Context;
use super::driver::{EventHandle, Fault, call, done};
use super::handle::Handle;
use cudarc::driver::sys;
use std::ffi::{c_char, c_uint};
use std::sync::{Arc, Mutex, PoisonError};

/// An event that takes no times.
const UNTIMED: c_uint = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as c_uint;

/// An event that other processes can open.
const SHARED: c_uint = sys::CUevent_flags::CU_EVENT_INTERPROCESS as c_uint;

/// A position in a stream, once it was recorded there. May be recorded again.
pub struct Event {
    context: Arc<Context>,
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
    pub(in crate::cuda) fn new(context: &Arc<Context>) -> Arc<Events> {
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
            let event = make(&self.context, 0)?;
            self.spare(true).push(event);
        }
        Ok(())
    }

    fn take(self: &Arc<Events>, timed: bool) -> Result<Event, Fault> {
        let spare = self.spare(timed).pop();
        let handle = spare.map_or_else(|| make(&self.context, if timed { 0 } else { UNTIMED }), Ok)?;
        Ok(Event { context: self.context.clone(), handle, home: Some((self.clone(), timed)) })
    }

    fn spare(&self, timed: bool) -> std::sync::MutexGuard<'_, Vec<EventHandle>> {
        self.spare[usize::from(timed)].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        for event in [false, true].into_iter().flat_map(|timed| std::mem::take(&mut *self.spare(timed))) {
            let _ = call!(self.context, cuEventDestroy_v2(event.raw()));
        }
    }
}

impl Event {
    /// An untimed event that another process can open, and its name.
    ///
    /// # Errors
    /// The driver refuses: events are not shared on this system.
    pub fn shared(context: &Arc<Context>) -> Result<(Event, ProcessHandle), Fault> {
        let event = Event { context: context.clone(), handle: make(context, UNTIMED | SHARED)?, home: None };
        let mut name = sys::CUipcEventHandle { reserved: [0; 64] };
        call!(context, cuIpcGetEventHandle(&mut name, event.handle.raw()))?;
        Ok((event, name.reserved.map(|byte| byte as u8)))
    }

    /// The event that another process made and named.
    pub fn open(context: &Arc<Context>, name: ProcessHandle) -> Result<Event, Fault> {
        context.make_current()?;
        let mut event = std::ptr::null_mut();
        let name = sys::CUipcEventHandle { reserved: name.map(|byte| byte as c_char) };
        call!(context, cuIpcOpenEventHandle(&mut event, name))?;
        Ok(Event { context: context.clone(), handle: Handle::new(event), home: None })
    }

    /// Whether it was reached; true also before it is first recorded.
    pub fn is_done(&self) -> Result<bool, Fault> {
        done(call!(self.context, cuEventQuery(self.handle.raw())))
    }

    /// Waits on the host until it is reached.
    pub fn synchronize(&self) -> Result<(), Fault> {
        call!(self.context, cuEventSynchronize(self.handle.raw()))
    }

    /// Nanoseconds from `since` to this event; both timed, reached, and of one context. The driver answers in float32
    /// milliseconds, which are exact to 60 ns over a second and to 1 µs over sixteen: measure from a recent event.
    ///
    /// # Errors
    /// One of the events was not recorded, not reached, or takes no time.
    pub fn elapsed_ns(&self, since: &Event) -> Result<f64, Fault> {
        let mut elapsed_ms = 0.0_f32;
        call!(self.context, cuEventElapsedTime_v2(&mut elapsed_ms, since.handle.raw(), self.handle.raw()))?;
        Ok(f64::from(elapsed_ms) * 1e6)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        match &self.home {
            Some((home, timed)) => home.spare(*timed).push(self.handle),
            None => {
                let _ = call!(self.context, cuEventDestroy_v2(self.handle.raw()));
            }
        }
    }
}

/// An event of this context, which becomes the thread's.
fn make(context: &Context, flags: c_uint) -> Result<EventHandle, Fault> {
    context.make_current()?;
    let mut event = std::ptr::null_mut();
    call!(context, cuEventCreate(&mut event, flags))?;
    Ok(Handle::new(event))
}
