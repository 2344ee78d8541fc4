//! Progress of a training on stderr: a bar on a terminal, else a line now and then.

use super::progress::RemarkOptions;
use crate::report::visible;
use crate::training_loop::{LogLine, LoopEvent};
use indicatif::{HumanDuration, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use std::cell::Cell;
use std::fmt::Write;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// Time between lines without a bar.
const BETWEEN_LINES: Duration = Duration::from_secs(10);

/// Longest sample that is shown, in characters.
const MOST_SAMPLE: usize = 400;

impl RemarkOptions {
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
        let remark = move |bar: &ProgressBar, text: &str| bar.suspend(|| self.remark(text));
        move |event| match event {
            LoopEvent::Begin { done, steps } => {
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
                    remark(&bar, &format!("step {}: {}", line.step, brief(line)));
                    said.set(Some(Instant::now()));
                }
                if let Some(sample) = &line.sample {
                    remark(&bar, &format!("step {}, sample: {}", line.step, quoted(sample)));
                }
            }
            LoopEvent::Saved(path) => remark(&bar, &format!("saved {}", path.display())),
            LoopEvent::End => bar.finish_and_clear(),
        }
    }
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
