//! An experiment on timed devices, on which each op lasts as long as its cost says: it shows the overhead of the executor itself.

use super::measure::in_turn;
use super::requirements::{require_memory, require_threads};
use super::results::RunSetting;
use super::training::settings;
use super::{Error, Event, Experiment, Observer, Results, Role, ScheduleRun, Steps};
use pipesim_cost::CostTable;
use pipesim_exec::link::Transport;
use pipesim_exec::{Batch, Host, Session, Shared, Sizes, Timed, start_session};
use pipesim_report::Report;
use pipesim_schedule::delivery::Delivery;
use pipesim_schedule::graph::TaskGraph;
use pipesim_schedule::mesh::Mesh;
use pipesim_sim::{self as sim, Setup};
use pipesim_system::{cores, provenance};
use std::sync::Arc;
use std::time::Duration;

impl Experiment {
    /// Runs on timed devices with messages by `transport`; one unit of the costs lasts `unit_ms` milliseconds.
    pub fn timed(&self, unit_ms: f64, transport: Transport, observer: Observer<'_>) -> Result<Results, Error> {
        if !unit_ms.is_finite() || unit_ms <= 0.0 || unit_ms > 1e6 {
            return Err(Error::Usage(format!("expected `unit-ms` above 0 and at most a million, found {unit_ms}")));
        }
        let microbatches = self.selection.microbatches;
        let (mut runs, mut tables) = (Vec::new(), Vec::new());
        let graphs = self.graphs(transport.delivery, &self.costs.of_orders(microbatches), observer)?;
        require_threads(graphs.iter(), Mesh::default(), &self.ranks)?;
        require_memory(graphs.iter(), None)?;
        for graph in graphs {
            let schedule = graph.schedule();
            let (table, _) = self.costs.table(&schedule.name, &schedule.placement, microbatches)?;
            let table = table.sliced(&schedule.placement, schedule.slices(), microbatches);
            let table = table.map_err(pipesim_answer::resolve::Error::from)?;
            let (graph, table) = (Arc::new(graph), Arc::new(table.in_milliseconds(unit_ms)));
            let above = self.selection.above_cap(&graph, table.keep);
            above.iter().for_each(|warning| observer(Event::Warning(warning)));
            let session = self.timed_session(&graph, &table, transport.delivery)?;
            runs.push(ScheduleRun { steps: Steps::new(graph, Role::Judged), training: None, session, weights: None });
            tables.push(table);
        }
        let batch = Arc::new(Batch::default());
        for run in &mut runs {
            (0..self.warmup).try_for_each(|_| run.session.step(&batch, None).map(drop))?;
        }
        observer(Event::Begin(u64::from(self.steps) * runs.len() as u64));
        let row = vec![(batch.clone(), None); self.back_to_back.max(1) as usize];
        let failure = in_turn(&mut runs, self.extent(), observer, |run, _| Ok(run.session.row(&row)?))?;
        let mut results = Results {
            report: Report {
                title: format!("Timed devices: {} devices, {microbatches} micro-batches", self.selection.devices),
                subtitle: "each op lasts as long as its cost says; waits and transfers are real".to_string(),
                provenance: provenance(),
                ..Report::default()
            },
            failure,
            ..Results::default()
        };
        let setup = Setup { memory_cap: self.selection.memory_cap, ..Setup::default() };
        let setting = RunSetting { link: transport.link.name, training: None };
        for (run, table) in runs.iter().zip(&tables) {
            results.judge(&run.steps, table, &setup, setting, None)?;
        }
        results.tabulate();
        Ok(results)
    }

    fn timed_session(
        &self,
        graph: &Arc<TaskGraph>,
        table: &Arc<CostTable>,
        delivery: Delivery,
    ) -> Result<Session, Error> {
        let devices = graph.schedule().devices();
        let makespan = sim::sweep(graph, table).iter().map(|device| device.last_end).max().unwrap_or(0);
        let timeout = self.training_config.timeout(makespan as f64 / 1e9);
        let fault = self.training_config.fault;
        let mut settings = settings(Mesh::default(), devices, timeout);
        // Not pinned, as a device that spins would block the one that it just woke on the same core.
        settings.pin = false;
        settings.spin = Duration::from_micros(20);
        settings.delivery = delivery;
        let spin = if devices <= cores() { Duration::from_millis(1) } else { Duration::ZERO };
        let sizes = Sizes { hidden: size_of::<f32>(), ..Sizes::default() };
        let shared = Arc::new(Shared::new(graph.clone(), &sizes, &settings, self.ranks.clone())?);
        let timed = |number| Host::runner(number, Box::new(Timed::new(table.clone(), spin)), &shared, fault);
        let runners = self.ranks.devices(devices).map(timed).collect::<anyhow::Result<_>>()?;
        Ok(start_session(shared, runners, settings)?)
    }
}
