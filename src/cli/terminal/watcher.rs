//! Progress of measurements and trainings on stderr: a bar on a terminal, else a line now and then.

use super::eprint;
use super::progress::{Busy, RemarkOptions};
use indicatif::{HumanDuration, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use pipesim_measure::experiment::Event;
use pipesim_measure::training_loop::{LogLine, LoopEvent};
use pipesim_report::visible;
use std::cell::{Cell, RefCell};
use std::fmt::Write;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// Time between lines without a bar.
const BETWEEN_LINES: Duration = Duration::from_secs(10);

/// Longest sample that is shown, in characters.
const MOST_SAMPLE: usize = 400;

impl RemarkOptions {
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
            _ => {}
        }
    }

    /// Shows the events of a training.
    pub fn watcher(self) -> impl Fn(LoopEvent<'_>) {
        let shown = !self.quiet && std::io::stderr().is_terminal();
        let target = if shown { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(None, target);
        let style = ProgressStyle::with_template("[{wide_bar}] {pos}/{len} steps{msg}{left}");
        let left = |state: &ProgressState, text: &mut dyn Write| {
            if state.pos() > 0 && !state.eta().is_zero() {
                let _ = write!(text, ", {:#} left", HumanDuration(state.eta()));
            }
        };
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()).with_key("left", left));
        let said: Cell<Option<Instant>> = Cell::new(None);
        // Of a line without a bar: when the steps began, and after which step.
        let begun = Cell::new((Instant::now(), 0));
        let remark = move |bar: &ProgressBar, text: &str| bar.suspend(|| self.remark(text));
        move |event| match event {
            LoopEvent::Begin { done, steps } => {
                begun.set((Instant::now(), done));
                bar.set_length(u64::from(steps));
                bar.set_position(u64::from(done));
                bar.reset_eta();
            }
            LoopEvent::Step(line) => {
                bar.set_message(format!(", {}", brief(line)));
                bar.set_position(u64::from(line.step));
                let is_time = said.get().is_none_or(|at| at.elapsed() > BETWEEN_LINES);
                let is_last = bar.length() == Some(u64::from(line.step));
                if let Some(loss) = line.validation_loss {
                    remark(&bar, &format!("step {}: {}, validation loss {loss:.4}", line.step, brief(line)));
                } else if !shown && (is_time || is_last) {
                    let rest = time_left(begun.get(), line.step, bar.length());
                    remark(
                        &bar,
                        &format!("step {} of {}: {}{rest}", line.step, bar.length().unwrap_or_default(), brief(line)),
                    );
                    said.set(Some(Instant::now()));
                }
                if let Some(sample) = line.sample.as_ref().filter(|_| !self.quiet) {
                    // a model's words, not the library's
                    bar.suspend(|| eprint(&format!("step {}, sample: {}", line.step, quoted(sample))));
                }
            }
            LoopEvent::Saved(path) => remark(&bar, &format!("saved {}", path.display())),
            LoopEvent::End => bar.finish_and_clear(),
            _ => {}
        }
    }
}

/// The time that the rest of `all` steps takes at the speed since `begun`, which is a time and the steps done then.
fn time_left(begun: (Instant, u32), step: u32, all: Option<u64>) -> String {
    let left = all.unwrap_or_default().saturating_sub(u64::from(step));
    let each = begun.0.elapsed().as_secs_f64() / f64::from(step.saturating_sub(begun.1).max(1));
    let seconds = Duration::try_from_secs_f64(each * left as f64).unwrap_or_default();
    if left == 0 { String::new() } else { format!(", {:#} left", HumanDuration(seconds)) }
}

/// A sample on one line.
fn quoted(sample: &str) -> String {
    let escaped = sample.replace('\\', "\\\\").replace('\n', "\\n").replace('\r', "\\r").replace('\t', "\\t");
    format!("\"{}\"", visible(&escaped, MOST_SAMPLE))
}

/// Loss and speed of a step.
fn brief(line: &LogLine) -> String {
    format!("loss {:.4}, {:.0} tokens/s", line.loss, line.tokens_per_second)
}
