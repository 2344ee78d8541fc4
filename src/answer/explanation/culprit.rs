//! What made a measured step long, in sentences: the culprit first.

use super::{RunDiagnosis, StepExplanation};
use crate::advice::{LEAST, What};
use pipesim_diagnosis::Finding;
use pipesim_report::{number, percent};
use pipesim_schedule::timeline::Source;

/// Least saving of a finding that is named.
const NAMED: f64 = 0.005;
/// Most findings that are named after the first.
const MORE: usize = 2;

impl StepExplanation {
    /// Writes the sentences of a measured step.
    pub(super) fn write_measured(&self, measured: &RunDiagnosis) -> Vec<String> {
        let first = measured.culprit();
        let rest = measured.findings.iter().filter(|&finding| first != Some(finding));
        let rest: Vec<String> = rest
            .filter(|finding| finding.saves() >= NAMED)
            .take(MORE)
            .map(|finding| self.finding(measured, finding))
            .collect();
        let head = first.map_or_else(|| self.own_bubble(measured), |finding| self.finding(measured, finding));
        let source = match measured.source {
            Source::Predicted => "This step is predicted, not measured.".to_string(),
            Source::Measured => String::new(),
        };
        let lines = [source, head, self.headline(), self.causes()].into_iter().chain(rest);
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
            Finding::SlowDevice { device, slower, saves } => format!(
                "Device {device} is {} slower than the others, with all its stages: if it were as fast as they are, {}.",
                percent(*slower),
                would(*saves)
            ),
            Finding::SlowNode { first_device, last_device, slower, saves } => format!(
                "Devices {first_device} to {last_device} are {} slower than the others, all alike: if they were as fast, {}.",
                percent(*slower),
                would(*saves)
            ),
            Finding::SlowLink { devices: [one, other], typical, others, saves } => format!(
                "Messages between devices {one} and {other} take {}, on other links {}: if they took as long as there, {}.",
                self.time(*typical),
                self.time(*others),
                would(*saves)
            ),
            Finding::SlowHost { device, typical, others, saves } => format!(
                "The host of device {device} starts ops {} late, other hosts {}: if it were as fast as they are, {}.",
                self.time(*typical),
                self.time(*others),
                would(*saves)
            ),
            Finding::Imbalance { busiest, saves } => format!(
                "Work is not spread evenly: the busiest device has {} more than the average{}. Spread evenly, {}.",
                percent(*busiest),
                if Self::blames_a_part(measured) { ", apart from what is slow" } else { "" },
                would(*saves)
            ),
            Finding::Pause { device, before, after, before_send, delay, typical, saves } => {
                let at = match (after, before_send) {
                    (Some(after), true) => format!("after {after}, before it sends that op's output"),
                    (Some(after), false) => format!("after {after}"),
                    (None, _) => format!("before {before}, its first op"),
                };
                format!(
                    "Device {device} pauses for {} {at}; hosts typically take {}. Without the pause {}.",
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

    /// Whether a stage, device or node is slower than the others.
    fn blames_a_part(measured: &RunDiagnosis) -> bool {
        let is_part = |finding: &Finding| {
            matches!(finding, Finding::SlowStage { .. } | Finding::SlowDevice { .. } | Finding::SlowNode { .. })
        };
        measured.findings.iter().any(is_part)
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
