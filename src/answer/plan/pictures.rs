//! Plans as charts, maps and a page.

use super::answer::Plan;
use super::flags::{PlanFlags, Target};
use super::nearby::{Front, Variation, fronts, heat_map, sensitivities};
use super::report::PlanReport;
use super::search::{Observer, Search};
use pipesim_report::{Chart, HeatMap, Plot, PlotAxis, Plots, Series, SeriesStyle, Table, escape, gibibytes, number};
use std::collections::BTreeSet;

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:80rem;padding:0 1rem;color:#1f2328}\
table{border-collapse:collapse;margin:.5rem 0 1.5rem}th,td{padding:.2rem .7rem;text-align:right;border-bottom:1px solid #d8dee4}\
th:first-child,td:first-child{text-align:left}pre{background:#f2f4f7;padding:.8rem;overflow:auto}svg{max-width:100%;height:auto}";

/// Returns the smallest and the largest of some numbers.
fn range(numbers: impl Iterator<Item = f64> + Clone) -> (f64, f64) {
    (numbers.clone().fold(f64::INFINITY, f64::min), numbers.fold(0.0, f64::max))
}

fn axis(label: &str, log: bool, from_zero: bool) -> PlotAxis {
    PlotAxis { label: label.to_string(), log, from_zero, ticks: None }
}

fn heat(plans: &[Plan], on: &str) -> Option<Plot> {
    let tps: BTreeSet<u32> = plans.iter().map(|plan| plan.layout.tp).collect();
    let pps: BTreeSet<u32> = plans.iter().map(|plan| plan.layout.pp).collect();
    if plans.len() < 2 {
        return None;
    }
    let cell = |pp: u32, tp: u32| {
        let plan = plans.iter().find(|plan| (plan.layout.tp, plan.layout.pp) == (tp, pp))?;
        Some((plan.estimate.iteration_s, format!("{} s", number(plan.estimate.iteration_s))))
    };
    Some(Plot::HeatMap(HeatMap {
        title: format!("best iteration by tp and pp{on}; –: nothing fits"),
        columns: tps.iter().map(|tp| format!("tp {tp}")).collect(),
        rows: pps.iter().map(|pp| format!("pp {pp}")).collect(),
        cells: pps.iter().map(|&pp| tps.iter().map(|&tp| cell(pp, tp)).collect()).collect(),
        range: range(plans.iter().map(|plan| plan.estimate.iteration_s)),
        series: Vec::new(),
    }))
}

fn front(plans: &[Plan], title: &str, x: PlotAxis, of: fn(&Plan) -> (f64, f64), y: &str) -> Option<Plot> {
    let points: Vec<(f64, f64)> = plans.iter().map(of).collect();
    let series = vec![Series { name: "best plan".to_string(), style: SeriesStyle::Line, points }];
    let chart = Chart { title: title.to_string(), x, y: axis(y, false, true), series, guides: Vec::new() };
    (plans.len() > 1).then_some(Plot::Chart(chart))
}

impl PlanReport<'_> {
    /// Returns the plans on maps and charts, which take further searches until `observer` stops them.
    pub fn plots(&self, observer: &dyn Observer) -> Plots {
        let Front { memory, gpus } = fronts(self.search, observer);
        let by_memory = |plan: &Plan| (plan.memory_bytes() as f64 / f64::from(1 << 30), plan.estimate.iteration_s);
        let by_gpus = |plan: &Plan| (plan.layout.gpus() as f64, plan.estimate.tokens_per_second_per_gpu);
        let on =
            |gpus: u64| if self.search.question.gpus.len() > 1 { format!(" on {gpus} GPUs") } else { String::new() };
        let on_first = on(self.search.question.gpus[0].into());
        let mut plots: Vec<Plot> = heat(&heat_map(self.search, observer), &on_first).into_iter().collect();
        plots.extend(front(
            &memory,
            &format!("time against memory{on_first}"),
            axis("memory per GPU, GiB", false, false),
            by_memory,
            "iteration, s",
        ));
        let ticks = gpus.iter().map(|plan| plan.layout.gpus() as f64).collect();
        let sizes = PlotAxis { ticks: Some(ticks), ..axis("GPUs", true, false) };
        plots.extend(front(&gpus, "speed against GPUs", sizes, by_gpus, "tokens/s per GPU"));
        plots.extend(
            self.plans.plans.first().and_then(|best| self.sensitivity(best, &on(best.layout.gpus()), observer)),
        );
        let notes = self.sentences();
        let title = self.title();
        Plots { title, plots, notes, ..Plots::default() }
    }

    fn sentences(&self) -> Vec<String> {
        self.why.iter().flat_map(|[why, beats]| [format!("Why plan 1: {why}"), beats.clone()]).collect()
    }

    /// Returns how the fastest plan on as many GPUs as `best` changes with memory, links and network.
    fn sensitivity(&self, best: &Plan, on: &str, observer: &dyn Observer) -> Option<Plot> {
        let question = self.search.question.of_size(best);
        let all = sensitivities(&question, &Variation::SHOWN, observer);
        // searched as the others are: this report's own search has splits of layers that were found for its plans
        let fastest = Search::new(&question).ok()?.one(question.bytes(), &|_, _| true)?;
        let speed = fastest.estimate.tokens_per_second_per_gpu;
        let series = ["memory", "link", "network"].map(|name| {
            let of = |change: Variation| Some(change.parts()).filter(|(what, _)| *what == name).map(|(_, times)| times);
            let own = all.iter().filter_map(|near| {
                let plan = near.plan.as_ref()?;
                Some((of(near.change)?, 100.0 * plan.estimate.tokens_per_second_per_gpu / speed))
            });
            let mut points: Vec<(f64, f64)> = own.chain([(1.0, 100.0)]).collect();
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            Series { name: name.to_string(), style: SeriesStyle::Line, points }
        });
        Some(Plot::Chart(Chart {
            title: format!("fastest plan{on} with other memory, links or network"),
            x: PlotAxis {
                ticks: Some(vec![0.125, 0.25, 0.5, 1.0, 2.0, 4.0]),
                ..axis("times the hardware's", true, false)
            },
            y: axis("tokens/s per GPU, %", false, false),
            series: series.into(),
            guides: vec![[(0.125, 100.0), (4.0, 100.0)]],
        }))
    }

    /// Returns a page with `svg`, the drawn plots.
    pub fn html(&self, svg: &str) -> String {
        let mut out = format!(
            "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\n\
             <title>{0}</title><style>{STYLE}</style>\n<h1>{0}</h1>\n",
            escape(&self.report().title)
        );
        for sentence in self.sentences() {
            out += &format!("<p>{}</p>\n", escape(&sentence));
        }
        out += svg;
        for table in self.tables() {
            out += &html_table(&table);
        }
        if let Some(best) = self.plans.plans.first() {
            for target in Target::all().unwrap_or_default() {
                if let Ok(PlanFlags { text, notes }) = self.flags(best, target) {
                    out += &format!("<h2>Plan 1 for {}</h2>\n<pre>{}</pre>\n", target.title(), escape(&text));
                    notes.iter().for_each(|note| out += &format!("<p>{}</p>\n", escape(note)));
                }
            }
        }
        out + &format!("<p>Memory limit {} per GPU.</p>\n</html>\n", gibibytes(self.search.question.bytes()))
    }
}

fn html_table(table: &Table) -> String {
    let cells = |row: &[String], tag: &str| {
        row.iter().map(|cell| format!("<{tag}>{}</{tag}>", escape(cell))).collect::<String>()
    };
    let rows: String = table.rows.iter().map(|row| format!("<tr>{}</tr>\n", cells(row, "td"))).collect();
    format!("<h2>{}</h2>\n<table>\n<tr>{}</tr>\n{rows}</table>\n", escape(&table.caption), cells(&table.header, "th"))
}
