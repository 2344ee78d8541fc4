//! What an experiment says while it goes on.

use crate::resolve::Warning;

/// Something that happens.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A remark for people.
    Remark(&'a str),
    /// A schedule is not as it was asked for.
    Warning(&'a Warning),
    /// So many steps, of all schedules together, are to be measured.
    Begin(u64),
    /// The schedule of this name is warmed up.
    WarmUp(&'a str),
    /// It is the turn of the schedule of this name.
    Turn(&'a str),
    /// A step was measured.
    Step {
        /// Of this schedule.
        schedule: &'a str,
        /// Its number, from 0.
        number: u32,
        /// Before the update; none where nothing is trained.
        loss: Option<f64>,
        /// How long it took.
        iteration_ms: f64,
        /// From the tokens in the host's memory to the loss back there, by its clock.
        tokens_per_second: f64,
    },
    /// All steps were measured.
    End,
}

/// Who hears of it.
pub type Observer<'a> = &'a dyn Fn(Event<'_>);

/// For those who do not want to hear.
pub fn silent(_: Event<'_>) {}
