//! Shows people how far things are: remarks, a bar, a line a step; of what takes long, that it goes on.

use super::options::RemarkOptions;
use super::selection::warn;
use crate::experiment::Event;
use crate::report::visible;
use indicatif::{HumanDuration, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use std::cell::RefCell;
use std::fmt::Write;
use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What takes longer is shown.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often it is said where there is no terminal.
const BETWEEN_LINES: Duration = Duration::from_secs(10);
/// How often it is drawn on a terminal.
const BETWEEN_DRAWINGS: Duration = Duration::from_millis(100);

/// Something that may take long: from two seconds on people see that it goes on, until this is dropped. On a terminal a bar or a
/// spinner, else a line now and then.
pub struct Busy {
    done: Arc<AtomicU64>,
    ended: Option<Sender<()>>,
    watch: Option<JoinHandle<()>>,
}

impl Busy {
    /// One more is done.
    pub fn done(&self) {
        self.done.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.ended = None;
        self.watch.take().map(JoinHandle::join);
    }
}

/// Something that goes on.
struct Going {
    what: String,
    begin: Instant,
    /// How many there are of what.
    of: Option<(u64, &'static str)>,
    done: Arc<AtomicU64>,
}

impl Going {
    /// A line that says so.
    fn line(&self) -> String {
        let (seconds, done) = (self.begin.elapsed().as_secs(), self.done.load(Ordering::Relaxed));
        match self.of {
            Some((all, unit)) => format!("{}: {done} of {all} {unit} after {seconds} s", self.what),
            None => format!("{}: {seconds} s so far", self.what),
        }
    }

    /// Draws a bar, or a spinner where it is not known how much there is to do.
    fn bar(&self) -> ProgressBar {
        let all = self.of.map(|(all, _)| all);
        let template = match self.of {
            Some((_, unit)) => format!("{{msg}} [{{bar:30}}] {{pos}}/{{len}} {unit}, {{eta}} left"),
            None => "{spinner} {msg}, {elapsed}".to_string(),
        };
        let style = ProgressStyle::with_template(&template).unwrap_or_else(|_| ProgressStyle::default_bar());
        let bar = ProgressBar::with_draw_target(all, ProgressDrawTarget::stderr()).with_style(style);
        bar.with_message(self.what.clone()).with_elapsed(self.begin.elapsed())
    }
}

impl RemarkOptions {
    /// Shows that `what` goes on where it takes long; `of` says how much there is to do, where that is known.
    pub fn busy(self, what: &str, of: Option<(u64, &'static str)>) -> Busy {
        let done = Arc::new(AtomicU64::new(0));
        let going = Going { what: visible(what, 80), begin: Instant::now(), of, done: done.clone() };
        let (ended, end) = channel::<()>();
        let watch = move || {
            let waits = |time| matches!(end.recv_timeout(time), Err(RecvTimeoutError::Timeout));
            if !waits(PATIENCE) {
                return;
            }
            if !std::io::stderr().is_terminal() {
                self.remark(&going.line());
                while waits(BETWEEN_LINES) {
                    self.remark(&going.line());
                }
                return;
            }
            let bar = going.bar();
            while waits(BETWEEN_DRAWINGS) {
                bar.set_position(going.done.load(Ordering::Relaxed));
                bar.tick();
            }
            bar.finish_and_clear();
        };
        // Where there is no thread to be had, there is no progress to be seen.
        let named = std::thread::Builder::new().name("progress".to_string());
        let watch = (!self.quiet).then(|| named.spawn(watch).ok()).flatten();
        Busy { done, ended: Some(ended), watch }
    }

    /// Tells of what goes on: `bar` draws one on a terminal, `lines` gives each step a line.
    pub fn observer(self, bar: bool, lines: bool) -> impl Fn(Event<'_>) {
        let shown = bar && !self.quiet && std::io::stderr().is_terminal();
        let target = if shown { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(None, target);
        let style = ProgressStyle::with_template("{msg} [{bar:30}] {pos}/{len} steps{left}");
        // Before a step has ended nobody knows.
        let left = |state: &ProgressState, text: &mut dyn Write| {
            if state.pos() > 0 {
                let _ = write!(text, ", {} left", HumanDuration(state.eta()));
            }
        };
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()).with_key("left", left));
        // Where no bar is seen, how far it is is said now and then.
        let busy: RefCell<Option<Busy>> = RefCell::new(None);
        move |event| match event {
            Event::Remark(text) => self.remark(text),
            Event::Warning(warning) => warn(warning, self),
            Event::Begin(steps) => {
                bar.reset();
                bar.set_length(steps);
                busy.replace((!shown).then(|| self.busy("measuring", Some((steps, "steps")))));
            }
            Event::WarmUp(schedule) => bar.set_message(visible(&format!("warming up {schedule}"), 80)),
            Event::Turn(schedule) => bar.set_message(visible(schedule, 80)),
            Event::Step { schedule, number, loss, iteration_ms: ms, tokens_per_second: speed } => {
                if let Some(loss) = loss.filter(|_| lines) {
                    bar.suspend(|| {
                        self.remark(&format!(
                            "step {number} {schedule:<18} loss {loss:.6}  {ms:.1} ms  {speed:.0} tokens/s"
                        ));
                    });
                }
                bar.inc(1);
                busy.borrow().iter().for_each(Busy::done);
            }
            Event::End => {
                bar.finish_and_clear();
                busy.replace(None);
            }
        }
    }
}
