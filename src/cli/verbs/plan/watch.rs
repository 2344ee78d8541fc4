//! Progress, Ctrl-C and the journal of a search.

use crate::cli::Failure;
use crate::cli::options::costs::read_text;
use crate::cli::terminal::progress::RemarkOptions;
use crate::cli::terminal::signals;
#[cfg(unix)]
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use pipesim_answer::plan::{Journal, LayoutOutcome, Observer, Plans, Question};
use pipesim_models::layout::ParallelConfig;
use pipesim_report::{WriteError, write_atomic};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Searches that take longer show their progress.
const PATIENCE: Duration = Duration::from_secs(1);
const MOST_JOURNAL: u64 = 1 << 30;

/// Follows a search.
pub struct Watch {
    #[cfg(unix)]
    bar: Mutex<Option<ProgressBar>>,
    begin: Instant,
    remarks: RemarkOptions,
    /// The signal that ended the search; 0 for none.
    signal: Arc<AtomicUsize>,
    known: BTreeMap<u32, LayoutOutcome>,
    journal: Option<Mutex<File>>,
}

impl Watch {
    /// Reads the journal at `path`, or begins it.
    pub fn start(question: &Question, path: Option<&Path>, remarks: RemarkOptions) -> Result<Watch, Failure> {
        let mut known = BTreeMap::new();
        let mut journal = None;
        if let Some(path) = path {
            let there = std::fs::metadata(path).is_ok_and(|data| data.len() > 0);
            if there {
                let text = read_text(path, MOST_JOURNAL)?;
                let name = path.display();
                known = Journal::read(question, &text)
                    .map_err(|error| Failure::Usage(format!("{name}: {error}")))?
                    .outcomes;
                remarks.remark(&format!("{name}: {} layouts are known", known.len()));
            }
            let failed = |cause: String| {
                Failure::Failed(anyhow::anyhow!(
                    "expected to write {}, but could not; choose another file: {cause}",
                    path.display()
                ))
            };
            // a last line that was cut off is written again, in a new file, so that nothing is lost if that fails
            let mut text = format!("{}\n", Journal::head(question));
            known.iter().for_each(|(number, outcome)| text += &format!("{}\n", Journal::line(*number, *outcome)));
            write_atomic(path, text.as_bytes()).map_err(|error| match error {
                WriteError::Place { cause, .. } => failed(cause),
                error => error.into(),
            })?;
            let file = OpenOptions::new().append(true).open(path).map_err(|error| failed(error.to_string()))?;
            journal = Some(Mutex::new(file));
        }
        let signal = Arc::new(AtomicUsize::new(0));
        signals::note(&signal);
        Ok(Watch {
            #[cfg(unix)]
            bar: Mutex::default(),
            begin: Instant::now(),
            remarks,
            signal,
            known,
            journal,
        })
    }

    /// Returns the results in the journal.
    pub fn known(&self) -> BTreeMap<u32, LayoutOutcome> {
        self.known.clone()
    }

    /// Ends the progress bar.
    pub fn done(&self) {
        #[cfg(unix)]
        if let Some(bar) = self.bar.lock().unwrap_or_else(PoisonError::into_inner).take() {
            bar.finish_and_clear();
        }
    }

    /// Fails if a signal ended the work on `plans`.
    pub fn ended(&self, plans: &Plans) -> Result<(), Failure> {
        let signal = self.signal.load(Ordering::SeqCst);
        if signal == 0 {
            return Ok(());
        }
        let name = signals::name(signal);
        let what = match (plans.is_stopped, plans.plans.is_empty()) {
            (true, true) => "no plan was found so far",
            (true, false) => "these plans are the best so far; others may be better",
            (false, _) => "these plans are the best, but pictures and what would beat them are left out",
        };
        let resume = if self.journal.is_some() { "; the same command continues the search" } else { "" };
        let text = format!("stopped by {name}: {what}{resume}");
        Err(Failure::Stopped(text, 128 + signal as u8))
    }
}

impl Observer for Watch {
    fn progress(&self, decided: usize, all: usize, best: Option<(f64, &ParallelConfig)>) {
        if self.remarks.quiet || !std::io::stderr().is_terminal() || self.begin.elapsed() < PATIENCE {
            return;
        }
        #[cfg(unix)]
        {
            let mut bar = self.bar.lock().unwrap_or_else(PoisonError::into_inner);
            let bar = bar.get_or_insert_with(|| {
                let style = ProgressStyle::with_template("{pos} of {len} layouts [{bar:30}] {msg}");
                let bar = ProgressBar::with_draw_target(Some(all as u64), ProgressDrawTarget::stderr());
                bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
            });
            if let Some((seconds, layout)) = best {
                bar.set_message(format!("best so far {seconds:.3} s: {layout}"));
            }
            bar.set_position(decided as u64);
        }
        let _ = (decided, all, best);
    }

    fn outcome(&self, number: u32, outcome: LayoutOutcome) {
        if let Some(journal) = &self.journal {
            let mut file = journal.lock().unwrap_or_else(PoisonError::into_inner);
            // if the journal cannot be written, only time is lost later
            let _ = writeln!(file, "{}", Journal::line(number, outcome));
        }
    }

    fn is_stopped(&self) -> bool {
        self.signal.load(Ordering::SeqCst) != 0
    }
}
