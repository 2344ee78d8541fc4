//! Remarks and progress on stderr: a bar or a spinner on a terminal, else a line now and then.

use super::eprint;
use crate::experiment::Event;
use crate::report::visible;
use crate::resolve::Warning;
use clap::Args;
use indicatif::{HumanDuration, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use std::cell::RefCell;
use std::fmt::Write;
use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Work that takes longer shows its progress.
const PATIENCE: Duration = Duration::from_secs(2);
const BETWEEN_LINES: Duration = Duration::from_secs(10);
const BETWEEN_DRAWINGS: Duration = Duration::from_millis(100);

#[derive(Args, Clone, Copy, Debug, Default)]
pub struct RemarkOptions {
    /// Print nothing to stderr but errors
    #[arg(long, short)]
    pub quiet: bool,
}

/// What is printed to stderr by a verb that has more to say.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct DetailOptions {
    #[command(flatten)]
    pub remarks: RemarkOptions,
    /// Print more to stderr; repeatable
    #[arg(long, short, action = clap::ArgAction::Count, conflicts_with = "quiet")]
    pub verbose: u8,
}

/// Work that may take long; shows its progress until dropped.
pub struct Busy {
    done: Arc<AtomicU64>,
    ended: Option<Sender<()>>,
    watch: Option<JoinHandle<()>>,
}

impl Busy {
    /// Counts one more piece as done.
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

struct Progress {
    what: String,
    begin: Instant,
    /// Number of pieces and their unit.
    of: Option<(u64, &'static str)>,
    done: Arc<AtomicU64>,
}

impl Progress {
    fn line(&self) -> String {
        let (seconds, done) = (self.begin.elapsed().as_secs(), self.done.load(Ordering::Relaxed));
        match self.of {
            Some((all, unit)) => format!("{}: {done} of {all} {unit} after {seconds} s", self.what),
            None => format!("{}: {seconds} s so far", self.what),
        }
    }

    /// Makes a bar, or a spinner if the number of pieces is unknown.
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
    /// Prints a remark to stderr unless --quiet is given.
    pub fn remark(self, text: &str) {
        if !self.quiet {
            eprint(text);
        }
    }

    /// Prints a warning; one that says what a result means is printed even with --quiet.
    pub fn warn(self, warning: &Warning) {
        let text = format!("warning: {warning}");
        match warning {
            Warning::Imported(_) => eprint(&text),
            Warning::AboveCap { .. } | Warning::NoneFits { .. } => self.remark(&text),
        }
    }

    /// Shows the progress of `what` if it takes long; `of` is the number of pieces and their unit, if known.
    pub fn busy(self, what: &str, of: Option<(u64, &'static str)>) -> Busy {
        let done = Arc::new(AtomicU64::new(0));
        let progress = Progress { what: visible(what, 80), begin: Instant::now(), of, done: done.clone() };
        let (ended, end) = channel::<()>();
        let watch = move || {
            let waits = |time| matches!(end.recv_timeout(time), Err(RecvTimeoutError::Timeout));
            if !waits(PATIENCE) {
                return;
            }
            if !std::io::stderr().is_terminal() {
                self.remark(&progress.line());
                while waits(BETWEEN_LINES) {
                    self.remark(&progress.line());
                }
                return;
            }
            let bar = progress.bar();
            while waits(BETWEEN_DRAWINGS) {
                bar.set_position(progress.done.load(Ordering::Relaxed));
                bar.tick();
            }
            bar.finish_and_clear();
        };
        // Without the thread there is no progress to be seen.
        let named = std::thread::Builder::new().name("progress".to_string());
        let watch = (!self.quiet).then(|| named.spawn(watch).ok()).flatten();
        Busy { done, ended: Some(ended), watch }
    }

    /// Shows the events of a measurement: `bar` draws a bar on a terminal, `lines` prints a line per step.
    pub fn observer(self, bar: bool, lines: bool) -> impl Fn(Event<'_>) {
        let shown = bar && !self.quiet && std::io::stderr().is_terminal();
        let target = if shown { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(None, target);
        let style = ProgressStyle::with_template("{msg} [{bar:30}] {pos}/{len} steps{left}");
        let left = |state: &ProgressState, text: &mut dyn Write| {
            if state.pos() > 0 {
                let _ = write!(text, ", {} left", HumanDuration(state.eta()));
            }
        };
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()).with_key("left", left));
        // Without a bar, the progress is a line now and then.
        let busy: RefCell<Option<Busy>> = RefCell::new(None);
        move |event| match event {
            Event::Remark(text) => self.remark(text),
            Event::Warning(warning) => self.warn(warning),
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
