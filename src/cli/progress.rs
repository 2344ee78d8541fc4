//! Shows people how far an experiment is: remarks, a bar, a line a step.

use super::options::RemarkOptions;
use super::selection::warn;
use crate::experiment::Event;
use crate::report::visible;
use indicatif::{HumanDuration, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use std::fmt::Write;
use std::io::IsTerminal;

impl RemarkOptions {
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
        move |event| match event {
            Event::Remark(text) => self.remark(text),
            Event::Warning(warning) => warn(warning, self),
            Event::Begin(steps) => {
                bar.reset();
                bar.set_length(steps);
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
            }
            Event::End => bar.finish_and_clear(),
        }
    }
}
