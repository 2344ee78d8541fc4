//! Options that suit a layout.

use super::{Analytic, CostError};
use pipesim_models::layout::{ParallelConfig, StepOptions};

/// Share of a layer's time below which an option is not worth its use.
const WORTH: f64 = 0.0005;

impl Analytic {
    /// Returns the cost model under another layout with the first of `options` whose layers take no more than 0.05 % longer than with the best ones. Options change no
    /// memory, and speed up forward and backward alike, so the best of a micro-batch are the best of a step.
    ///
    /// # Errors
    /// As [`Analytic::new`].
    pub fn with_best(&self, layout: ParallelConfig, options: &[StepOptions]) -> Result<Analytic, CostError> {
        let layout = match options.first() {
            Some(first) => layout.with_options(*first),
            None => layout,
        };
        let first = self.under(layout)?;
        if options.len() < 2 {
            return Ok(first);
        }
        let others = options.iter().skip(1).map(|other| {
            let layout = first.layout.clone().with_options(*other);
            match first.others.is_empty() {
                true => Ok(Analytic { layout, ..first.clone() }.with_passes(0)),
                false => first.under(layout),
            }
        });
        let all = [Ok(first.clone())].into_iter().chain(others).collect::<Result<Vec<_>, CostError>>()?;
        let best = all.iter().map(Analytic::of_micro_batch).fold(f64::INFINITY, f64::min);
        Ok(all.into_iter().find(|costs| costs.of_micro_batch() <= best * (1.0 + WORTH)).unwrap_or(first))
    }

    /// Returns the seconds of one micro-batch in all layers.
    fn of_micro_batch(&self) -> f64 {
        let parts = self.spec.parts.iter().zip(&*self.passes);
        parts.map(|(part, passes)| part.count as f64 * (passes.forward.total() + passes.backward.total())).sum()
    }
}
