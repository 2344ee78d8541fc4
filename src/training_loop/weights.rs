//! Moving a model between the devices of a session and the host's memory.

use crate::exec::Session;
use crate::experiment::Error;
use crate::model::{Parameters, Quantity};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Memory for all parameters of a model, or for something else of their shapes.
pub struct HostCopy(Arc<Mutex<Parameters>>);

impl HostCopy {
    /// Uses the memory of `parameters`.
    pub fn new(parameters: Parameters) -> HostCopy {
        HostCopy(Arc::new(Mutex::new(parameters)))
    }

    /// Returns what was copied last.
    pub fn get(&self) -> MutexGuard<'_, Parameters> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Copies a quantity of all parameters from the devices.
    ///
    /// # Errors
    /// A device fails.
    pub fn export(&self, session: &mut Session, what: Quantity) -> Result<MutexGuard<'_, Parameters>, Error> {
        let into = self.0.clone();
        session.call(move |_, state| state.export(&mut into.lock().unwrap_or_else(PoisonError::into_inner), what))?;
        Ok(self.get())
    }

    /// Copies a quantity of all parameters to the devices.
    ///
    /// # Errors
    /// A device fails.
    pub fn import(&self, session: &mut Session, from: Parameters, what: Quantity) -> Result<(), Error> {
        *self.get() = from;
        let from = self.0.clone();
        session.call(move |_, state| state.import(&from.lock().unwrap_or_else(PoisonError::into_inner), what))?;
        Ok(())
    }
}
