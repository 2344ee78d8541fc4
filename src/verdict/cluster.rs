//! Clusters compared: the best plan of each number of GPUs, what more GPUs gain, and the smallest that ends a training in time.

use crate::calibration::StepCalibration;
use pipesim_answer::plan::{Observer, Plan, PlanError, Question, RESOLUTION, Search, Stops};
use pipesim_report::{Table, gibibytes, number, percent, quantity, trimmed};
use serde::Serialize;

const SECONDS_PER_DAY: f64 = 86_400.0;

/// A training that the clusters are compared by.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Training {
    /// Tokens to train on.
    pub tokens: Option<u64>,
    /// Days in which it has to end.
    pub days: Option<f64>,
}

/// The best plan of a number of GPUs.
#[derive(Clone, Debug, Serialize)]
pub struct Cluster {
    pub gpus: u32,
    /// Why there is no plan.
    pub refused: Option<String>,
    pub iteration_s: Option<f64>,
    /// Tokens per second of all GPUs.
    pub tokens_per_second: Option<f64>,
    /// Tokens per second and GPU, divided by the same of the smallest cluster that has a plan.
    pub efficiency: Option<f64>,
    /// Days that the training takes, as predicted and within the 90 % interval of the iteration; without failures and evaluations.
    pub days: Option<f64>,
    pub days_interval: Option<[f64; 2]>,
    /// Price of the training, by the hardware's price.
    pub dollars: Option<f64>,
    #[serde(skip)]
    pub plan: Option<Plan>,
}

/// Clusters in the order of their sizes.
#[derive(Clone, Debug, Serialize)]
pub struct Clusters {
    pub clusters: Vec<Cluster>,
    /// The smallest number of GPUs that ends in time.
    pub smallest: Option<u32>,
    /// All of it in a few sentences.
    pub sentence: String,
    #[serde(skip)]
    asked: Training,
}

/// Returns the best plan of each number of GPUs of `question`, as a question about that number alone has it.
pub fn clusters(
    question: &Question,
    asked: Training,
    calibration: Option<&StepCalibration>,
    observer: &dyn Observer,
) -> Clusters {
    let mut sizes = question.gpus.clone();
    sizes.sort_unstable();
    let mut clusters: Vec<Cluster> = Vec::new();
    for gpus in sizes {
        if observer.is_stopped() {
            break;
        }
        let plan = plan_of(question, gpus, observer).map(|mut plan| {
            if let Some(calibration) = calibration {
                calibration.correct(&mut plan.estimate);
            }
            plan
        });
        let price = question.machine.hardware.dollars_per_gpu_hour;
        let first = clusters.iter().find_map(|cluster| cluster.plan.as_ref());
        let cluster = Cluster::new(gpus, plan, first, asked, price);
        clusters.push(cluster);
    }
    let in_time = |cluster: &&Cluster| cluster.days.zip(asked.days).is_some_and(|(days, most)| days <= most);
    let smallest = clusters.iter().find(in_time).map(|cluster| cluster.gpus);
    let mut found = Clusters { clusters, smallest, sentence: String::new(), asked };
    found.sentence =
        [found.said_of_training(), found.said_of_scaling()].into_iter().flatten().collect::<Vec<_>>().join(" ");
    found
}

/// Returns plan 1 of a question about `gpus` GPUs.
fn plan_of(question: &Question, gpus: u32, observer: &dyn Observer) -> Result<Plan, PlanError> {
    let one = Question { gpus: vec![gpus], keep: 1, ..question.clone() };
    one.check()?;
    let plans = Search::new(&one)?.plans(&Stops(observer))?;
    plans.plans.into_iter().next().ok_or_else(|| PlanError::Refused("the search was stopped".to_string()))
}

/// Returns the tokens per second of all GPUs.
fn tokens_per_second(plan: &Plan) -> f64 {
    plan.estimate.tokens_per_second_per_gpu * plan.layout.gpus() as f64
}

impl Cluster {
    fn new(gpus: u32, plan: Result<Plan, PlanError>, first: Option<&Plan>, asked: Training, price: f64) -> Cluster {
        let (plan, refused) = match plan {
            Ok(plan) => (Some(plan), None),
            Err(error) => (None, Some(error.to_string())),
        };
        let speed = plan.as_ref().map(tokens_per_second);
        let per_gpu = |plan: &Plan| plan.estimate.tokens_per_second_per_gpu;
        let days = asked.tokens.zip(speed).map(|(tokens, speed)| tokens as f64 / speed / SECONDS_PER_DAY);
        let interval = |plan: &Plan, days: f64| {
            plan.estimate.iteration_interval_s.map(|end| days * end / plan.estimate.iteration_s)
        };
        Cluster {
            gpus,
            refused,
            iteration_s: plan.as_ref().map(|plan| plan.estimate.iteration_s),
            tokens_per_second: speed,
            efficiency: plan.as_ref().map(|plan| per_gpu(plan) / per_gpu(first.unwrap_or(plan))),
            days,
            days_interval: plan.as_ref().zip(days).map(|(plan, days)| interval(plan, days)),
            dollars: days.filter(|_| price > 0.0).map(|days| days * 24.0 * f64::from(gpus) * price),
            plan,
        }
    }
}

/// Formats days, whose predictions are good for two digits: `61`, `6.1`, `0.52`.
fn short(days: f64) -> String {
    match days {
        20.0.. => trimmed(days, 0),
        1.0.. => trimmed(days, 1),
        _ => trimmed(days, 2),
    }
}

fn days(value: f64) -> String {
    if value == 1.0 { "1 day".to_string() } else { format!("{} days", short(value)) }
}

/// Formats tokens: `15T tokens`.
fn of_tokens(tokens: u64) -> String {
    let units = [("T", 1e12), ("B", 1e9), ("M", 1e6), ("", 1.0)];
    let (unit, size) = units.into_iter().find(|(_, size)| tokens as f64 >= *size).unwrap_or(("", 1.0));
    format!("{}{unit} tokens", number(tokens as f64 / size))
}

impl Clusters {
    /// Says how long the training takes, and which cluster ends it in time.
    fn said_of_training(&self) -> Option<String> {
        let tokens = of_tokens(self.asked.tokens?);
        let planned: Vec<&Cluster> = self.clusters.iter().filter(|cluster| cluster.days.is_some()).collect();
        let takes = |cluster: &Cluster| {
            let ([low, high], days_taken) =
                (cluster.days_interval.unwrap_or_default(), cluster.days.unwrap_or_default());
            let price = cluster.dollars.map_or_else(String::new, |dollars| format!(", ${}", number(dollars)));
            format!("{} ({} to {}{price}) on {} GPUs", days(days_taken), short(low), short(high), cluster.gpus)
        };
        let last = planned.last()?;
        let Some(most) = self.asked.days else {
            let all: Vec<String> = planned.iter().map(|cluster| takes(cluster)).collect();
            return Some(format!("{tokens} take {}.", all.join(", ")));
        };
        let Some(first) = planned.iter().find(|cluster| Some(cluster.gpus) == self.smallest) else {
            return Some(format!(
                "No number of GPUs ends {tokens} in {}: they take {}.",
                days(most),
                takes(
                    planned
                        .iter()
                        .min_by(|a, b| a.days.unwrap_or_default().total_cmp(&b.days.unwrap_or_default()))
                        .unwrap_or(last)
                )
            ));
        };
        let late = first.days_interval.is_some_and(|[_, high]| high > most);
        let is_certain = |cluster: &&&Cluster| cluster.days_interval.is_some_and(|[_, high]| high <= most);
        let doubt = match planned.iter().find(is_certain) {
            Some(safe) if late => {
                format!("; within the prediction's interval, only {} GPUs and more are sure to", safe.gpus)
            }
            None if late => "; within the prediction's interval, none is sure to".to_string(),
            _ => String::new(),
        };
        Some(format!("The smallest that ends {tokens} in {}: {}{doubt}.", days(most), takes(first)))
    }

    /// Says where more GPUs lose most of their speed, and to what.
    fn said_of_scaling(&self) -> Option<String> {
        let planned: Vec<(&Cluster, &Plan)> =
            self.clusters.iter().filter_map(|cluster| Some((cluster, cluster.plan.as_ref()?))).collect();
        let (Some(first), Some(last)) = (planned.first(), planned.last()) else { return None };
        if planned.len() < 2 {
            return None;
        }
        let efficiency = |cluster: &Cluster| cluster.efficiency.unwrap_or(1.0);
        let kept = |pair: &[(&Cluster, &Plan)]| efficiency(pair[1].0) / efficiency(pair[0].0);
        let worst = planned.windows(2).min_by(|a, b| kept(a).total_cmp(&kept(b)))?;
        let start = format!(
            "{} GPUs have {} of the speed per GPU of {}",
            last.0.gpus,
            percent(efficiency(last.0)),
            first.0.gpus
        );
        if kept(worst) > 1.0 - RESOLUTION {
            return Some(format!("{start}; no step loses more than {:.0} %.", 100.0 * RESOLUTION));
        }
        let [(before, slower), (after, faster)] = [worst[0], worst[1]];
        let (cause, _) = grown(slower, faster)?;
        Some(format!(
            "{start}; from {} to {} it falls by {}, most of it lost to {cause}.",
            before.gpus,
            after.gpus,
            percent(1.0 - kept(worst))
        ))
    }

    /// Returns the clusters as a table.
    pub fn table(&self) -> Table {
        let (is_timed, is_priced) =
            (self.asked.tokens.is_some(), self.clusters.iter().any(|one| one.dollars.is_some()));
        let mut header =
            vec!["GPUs", "tp", "pp", "dp", "schedule", "iteration", "tokens/s", "tokens/s/GPU", "efficiency", "memory"];
        header.extend(is_timed.then_some("days"));
        header.extend(is_priced.then_some("$"));
        let row = |cluster: &Cluster| {
            let mut cells = vec![cluster.gpus.to_string()];
            match &cluster.plan {
                None => cells.extend((1..header.len()).map(|_| "–".to_string())),
                Some(plan) => cells.extend(cluster.cells(plan, is_timed, is_priced)),
            }
            cells
        };
        let refused =
            self.clusters.iter().filter_map(|one| Some(format!("; {} GPUs: {}", one.gpus, one.refused.as_ref()?)));
        let caption = format!("The best plan of each number of GPUs{}", refused.collect::<String>());
        Table::new(caption, &header, self.clusters.iter().map(row).collect())
    }
}

impl Cluster {
    fn cells(&self, plan: &Plan, is_timed: bool, is_priced: bool) -> Vec<String> {
        let layout = &plan.layout;
        let schedule = if layout.pp == 1 { "–".to_string() } else { plan.schedule.clone() };
        let mut cells = [layout.tp, layout.pp, layout.dp].map(|degree| degree.to_string()).to_vec();
        cells.extend([
            schedule,
            quantity(1e3 * plan.estimate.iteration_s, "ms"),
            number(tokens_per_second(plan)),
            number(plan.estimate.tokens_per_second_per_gpu),
            self.efficiency.map_or_else(String::new, percent),
            gibibytes(plan.memory_bytes()),
        ]);
        let [low, high] = self.days_interval.unwrap_or_default().map(short);
        cells.extend(self.days.filter(|_| is_timed).map(|days| format!("{} ({low} to {high})", short(days))));
        cells.extend(is_priced.then(|| self.dollars.map_or_else(String::new, number)));
        cells
    }
}

/// Returns the cause that takes most more of all GPUs' seconds per token on the larger of two clusters, with these.
fn grown(smaller: &Plan, larger: &Plan) -> Option<(&'static str, f64)> {
    let gpus = |plan: &Plan| plan.layout.gpus() as f64;
    let [own, theirs] =
        [smaller, larger].map(|plan| plan.estimate.time_s.parts().map(|part| (part.cause, part.seconds * gpus(plan))));
    let more = own.into_iter().zip(theirs).map(|((cause, before), (_, after))| (cause, after - before));
    more.max_by(|a, b| a.1.total_cmp(&b.1))
}
