//! What made a measured step long, in sentences: the culprit first.

use super::{RunDiagnosis, StepExplanation};
use crate::advice::{LEAST, What};
use crate::diagnosis::Finding;
use pipesim_report::{number, percent};

/// Least saving of a finding that is named.
const NAMED: f64 = 0.005;
/// Most findings that are named after the first.
const MORE: usize = 2;

impl StepExplanation {
    /// Writes the sentences of a measured step.
    pub(super) fn write_measured(&self, measured: &RunDiagnosis) -> Vec<String> {
        let first = measured.culprit();
        let rest = measured.findings.iter().filter(|&finding| first.is_none_or(|first| first != finding));
        let rest: Vec<String> = rest
            .filter(|finding| finding.saves() >= NAMED)
            .take(MORE)
            .map(|finding| self.finding(measured, finding))
            .collect();
        let head = first.map_or_else(|| self.own_bubble(measured), |finding| self.finding(measured, finding));
        let lines = [head, self.headline(), self.causes()].into_iter().chain(rest);
        let lines = lines.chain([self.fit(measured), self.within(), self.beyond(), self.others()]);
        lines.filter(|line| !line.is_empty()).collect()
    }

    fn finding(&self, measured: &RunDiagnosis, finding: &Finding) -> String {
        let would = |saves: f64| format!("the step would be {} shorter", percent(saves));
        match finding {
            Finding::SlowStage { stage, device, slower, saves } => {
                let layers = self.moved(measured, *stage).map_or_else(String::new, |moved| format!("; {moved}"));
                format!(
                    "Stage {stage} (device {device}) is {} slower than the others, and everybody waits for it: if it were as fast as \
                     they are, {}{layers}.",
                    percent(*slower),
                    would(*saves)
                )
            }
            Finding::Pause { device, after, before_send, delay, typical, saves } => {
                let send = if *before_send { ", before it sends that op's output" } else { "" };
                format!(
                    "Device {device} pauses for {} after {after}{send}; hosts typically take {}. Without the pause {}.",
                    self.time(*delay),
                    self.time(*typical),
                    would(*saves)
                )
            }
            Finding::Stragglers { op, device, duration, typical, count, saves } => {
                let more = match count {
                    0 | 1 => "without it".to_string(),
                    more => format!("without it and {} more that take as much too long", more - 1),
                };
                format!(
                    "{op} on device {device} takes {}, {} times as long as its stage's ops of that kind ({}); {more} {}.",
                    self.time(*duration),
                    number(duration / typical.max(f64::MIN_POSITIVE)),
                    self.time(*typical),
                    would(*saves)
                )
            }
            Finding::HostDelays { mean, saves } => format!(
                "Hosts start ops {} late on average, after all that the op needs is there; without that {}.",
                self.time(*mean),
                would(*saves)
            ),
            Finding::Messages { typical, saves } => {
                format!(
                    "Messages take {} until a waiting device goes on; with free ones {}.",
                    self.time(*typical),
                    would(*saves)
                )
            }
        }
    }

    /// Says that the schedule itself makes the bubble.
    fn own_bubble(&self, measured: &RunDiagnosis) -> String {
        format!(
            "No stage, pause or op of this run stands out: even with equal stages, free links and no host delays {} would have a bubble of {}.",
            self.schedule,
            percent(measured.schedule_bubble)
        )
    }

    /// Says what moving layers away from `stage` saves: `moving 2 of its 10 layers would save 14 %`.
    fn moved(&self, measured: &RunDiagnosis, stage: u32) -> Option<String> {
        let changes = &self.advice.as_ref()?.changes;
        changes.iter().filter(|change| change.saves > LEAST).find_map(|change| {
            let What::Layers(then) = &change.what else { return None };
            let before = *measured.layers.as_ref()?.get(stage as usize)?;
            let moved = before.checked_sub(*then.get(stage as usize)?).filter(|moved| *moved > 0)?;
            let (less, what) = (percent(change.saves), &change.what);
            Some(format!("moving {moved} of its {before} layers would save {less} ({what})"))
        })
    }

    /// Says how well the step is predicted from its own costs.
    fn fit(&self, measured: &RunDiagnosis) -> String {
        let signed = |error: f64| format!("{:+.1} %", 100.0 * error);
        let fit = &measured.fit;
        let off = fit
            .deliveries
            .first()
            .map_or_else(String::new, |best| format!(" (ops start {} of the step off)", percent(best.start_error)));
        format!(
            "Predicted from its own mean costs it takes {} ({}), replayed op by op {}; {}{off}. All that follows is predicted from them.",
            self.time(measured.predicted_makespan),
            signed(fit.makespan_error),
            signed(fit.replay_error),
            fit.best_in_words()
        )
    }
}
