//! Remarks and progress on stderr: a bar or a spinner on a terminal, else a line now and then.

use super::eprint;
use crate::cli::flags::as_flags;
use clap::Args;
#[cfg(unix)]
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use pipesim_answer::question::{self, Observer, Remark};
use pipesim_answer::resolve::Warning;
use pipesim_frameworks::ObjectionKind;
use pipesim_report::visible;
use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Work that takes longer shows its progress.
const PATIENCE: Duration = Duration::from_secs(2);
const BETWEEN_LINES: Duration = Duration::from_secs(10);
#[cfg(unix)]
const BETWEEN_DRAWINGS: Duration = Duration::from_millis(100);

#[derive(Args, Clone, Copy, Debug, Default)]
pub struct RemarkOptions {
    /// Print nothing to stderr but errors
    #[arg(long, short)]
    pub quiet: bool,
    /// Whether the options come from a job, of which its framework's objections are told once.
    #[arg(skip)]
    pub has_job: bool,
    /// Whether the answer says what does not fit into memory.
    #[arg(skip)]
    pub says_misfits: bool,
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

struct ProgressLine {
    what: String,
    begin: Instant,
    /// Number of pieces and their unit.
    of: Option<(u64, &'static str)>,
    done: Arc<AtomicU64>,
}

impl ProgressLine {
    fn line(&self) -> String {
        let (seconds, done) = (self.begin.elapsed().as_secs(), self.done.load(Ordering::Relaxed));
        match self.of {
            Some((all, unit)) => format!("{}: {done} of {all} {unit} after {seconds} s", self.what),
            None => format!("{}: {seconds} s so far", self.what),
        }
    }

    /// Makes a bar, or a spinner if the number of pieces is unknown.
    #[cfg(unix)]
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
    /// Prints a remark to stderr unless --quiet is given, with settings as flags.
    pub fn remark(self, text: &str) {
        if !self.quiet {
            eprint(&as_flags(text));
        }
    }

    /// Prints a warning; one that says what a result means is printed even with --quiet.
    pub fn warn(self, warning: &Warning) {
        let text = as_flags(format!("warning: {warning}"));
        match warning {
            Warning::Imported(_) => eprint(&text),
            Warning::AboveCap { .. } | Warning::NoneFits { .. } => self.remark(&text),
        }
    }

    /// Shows the progress of `what` if it takes long; `of` is the number of pieces and their unit, if known.
    pub fn busy(self, what: &str, of: Option<(u64, &'static str)>) -> Busy {
        let done = Arc::new(AtomicU64::new(0));
        let progress = ProgressLine { what: visible(what, 80), begin: Instant::now(), of, done: done.clone() };
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
            #[cfg(unix)]
            {
                let bar = progress.bar();
                while waits(BETWEEN_DRAWINGS) {
                    bar.set_position(progress.done.load(Ordering::Relaxed));
                    bar.tick();
                }
                bar.finish_and_clear();
            }
        };
        // Without the thread there is no progress to be seen.
        let named = std::thread::Builder::new().name("progress".to_string());
        let watch = (!self.quiet).then(|| named.spawn(watch).ok()).flatten();
        Busy { done, ended: Some(ended), watch }
    }
}

impl Observer for RemarkOptions {
    fn remark(&self, remark: &Remark) {
        match remark {
            Remark::Warning(warning) => self.warn(warning),
            Remark::Misfit(_) if self.says_misfits => {}
            Remark::Framework { objection, .. } if self.has_job && objection.kind != ObjectionKind::Silent => {}
            other => RemarkOptions::remark(*self, &other.to_string()),
        }
    }

    fn busy(&self, what: &str, of: Option<(u64, &'static str)>) -> Box<dyn question::Busy> {
        Box::new(RemarkOptions::busy(*self, what, of))
    }
}

impl question::Busy for Busy {
    fn done(&self) {
        Busy::done(self);
    }
}
