//! Events, which mark positions in streams, and the pool that a GPU's events come from.

use super::driver::{EventHandle, call, done};
use super::{Context, Fault, Handle};
use cudarc::driver::sys;
use std::ffi::{c_char, c_uint};
use std::sync::{Arc, Mutex, PoisonError};

/// Flag of an event without a time stamp.
const UNTIMED: c_uint = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as c_uint;

/// Flag of an event that other processes can open.
const SHARED: c_uint = sys::CUevent_flags::CU_EVENT_INTERPROCESS as c_uint;

/// A position in a stream, set by [`super::Stream::record`], which may be called repeatedly.
pub struct Event {
    context: Arc<Context>,
    pub(super) handle: EventHandle,
    /// The pool it returns to on drop and whether it is timed; `None` for events shared between processes.
    home: Option<(Arc<Events>, bool)>,
}

/// A handle of an event or of memory that another process of this machine can open.
pub type ProcessHandle = [u8; 64];

/// Pool of the events of one GPU or slice. Events are created on demand and reused once dropped.
pub struct Events {
    context: Arc<Context>,
    /// Unused events: untimed, timed.
    spare: [Mutex<Vec<EventHandle>>; 2],
}

impl Events {
    pub fn new(context: &Arc<Context>) -> Arc<Events> {
        Arc::new(Events { context: context.clone(), spare: Default::default() })
    }

    /// Returns an event that records the time at which it is reached.
    pub fn timed(self: &Arc<Events>) -> Result<Event, Fault> {
        self.take(true)
    }

    /// Returns an event that can only be waited for, which is cheaper.
    pub fn untimed(self: &Arc<Events>) -> Result<Event, Fault> {
        self.take(false)
    }

    /// Creates timed events until `count` are unused, so that none is created during a step.
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
    /// Returns an untimed event that another process can open, and its handle.
    ///
    /// # Errors
    /// This system does not support sharing events.
    pub fn shared(context: &Arc<Context>) -> Result<(Event, ProcessHandle), Fault> {
        let event = Event { context: context.clone(), handle: make(context, UNTIMED | SHARED)?, home: None };
        let mut name = sys::CUipcEventHandle { reserved: [0; 64] };
        call!(context, cuIpcGetEventHandle(&mut name, event.handle.raw()))?;
        Ok((event, name.reserved.map(|byte| byte as u8)))
    }

    /// Opens the event that another process shared.
    pub fn open(context: &Arc<Context>, name: ProcessHandle) -> Result<Event, Fault> {
        context.make_current()?;
        let mut event = std::ptr::null_mut();
        let name = sys::CUipcEventHandle { reserved: name.map(|byte| byte as c_char) };
        call!(context, cuIpcOpenEventHandle(&mut event, name))?;
        Ok(Event { context: context.clone(), handle: Handle::new(event), home: None })
    }

    /// Whether it was reached. True for an event that was never recorded.
    pub fn is_done(&self) -> Result<bool, Fault> {
        done(call!(self.context, cuEventQuery(self.handle.raw())))
    }

    /// Blocks the calling thread until it is reached.
    pub fn synchronize(&self) -> Result<(), Fault> {
        call!(self.context, cuEventSynchronize(self.handle.raw()))
    }

    /// Returns the nanoseconds from `since` to this event; both must be timed, reached and of one context. The driver's float32
    /// milliseconds are exact to 60 ns over 1 s and to 1 µs over 16 s, so measure from a recent event.
    ///
    /// # Errors
    /// One of the events is not recorded, not reached, or untimed.
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

/// Creates an event of this context, which becomes the thread's.
fn make(context: &Context, flags: c_uint) -> Result<EventHandle, Fault> {
    context.make_current()?;
    let mut event = std::ptr::null_mut();
    call!(context, cuEventCreate(&mut event, flags))?;
    Ok(Handle::new(event))
}
