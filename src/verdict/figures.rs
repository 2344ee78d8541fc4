//! Tables of steps on hardware: their figures, and the memory of the fullest device.

use pipesim_answer::question::Predicted;
use pipesim_answer::step_estimate::StepEstimate;
use pipesim_cost::analytic::{Analytic, StepTime, TimePart};
use pipesim_report::{Table, gibibytes, number, quantity};
use std::collections::BTreeSet;

/// Returns the numbers of parameters that a token activates, and that multi-token prediction adds.
fn parameters_beside(analytic: &Analytic) -> String {
    let billions = |parameters: u128| format!("{:.2} G", parameters as f64 / 1e9);
    let active = analytic.model.experts.map(|_| format!("{} active", billions(analytic.spec.active_parameters())));
    let adapters = analytic.model.lora.map(|_| analytic.spec.adapter_parameters());
    let adapters = adapters.map(|parameters| format!("{:.2} M of adapters trained", parameters as f64 / 1e6));
    let predicting = Some(analytic.spec.prediction_parameters()).filter(|parameters| *parameters > 0);
    let predicting = predicting.map(|parameters| format!("{} more for multi-token prediction", billions(parameters)));
    let words: Vec<String> = active.into_iter().chain(predicting).chain(adapters).collect();
    if words.is_empty() { String::new() } else { format!(" ({})", words.join(", ")) }
}

/// Returns the steps on hardware with the names of their schedules.
fn steps(predictions: &[Predicted]) -> impl Iterator<Item = (&String, &StepEstimate)> {
    predictions.iter().filter_map(|one| Some((&one.figures.schedule, one.estimate.as_ref()?)))
}

/// Makes a table of step estimates, one row per schedule, times in ms.
pub fn table(analytic: &Analytic, predictions: &[Predicted]) -> Table {
    let mut header =
        vec!["schedule", "iteration", "50 % within", "90 % within", "tokens/s", "tokens/s/GPU", "TFLOP/s/GPU", "MFU"];
    let ms = |seconds: f64| quantity(seconds * 1e3, "ms");
    let is_shown = |part: &TimePart| analytic.model.experts.is_some() || part.title != "experts";
    header.extend(StepTime::default().parts().into_iter().filter(is_shown).map(|part| part.title));
    let row = |(name, f): (&String, &StepEstimate)| {
        let within = |[low, high]: [f64; 2]| format!("{} to {}", number(low * 1e3), ms(high));
        let mut cells = vec![
            name.clone(),
            ms(f.iteration_s),
            within(f.iteration_interval_50_s),
            within(f.iteration_interval_s),
            number(f.tokens_per_second),
            number(f.tokens_per_second_per_gpu),
            number(f.model_tflops_per_gpu),
            format!("{:.1} %", 100.0 * f.mfu),
        ];
        cells.extend(f.time_s.parts().into_iter().filter(is_shown).map(|part| ms(part.seconds)));
        cells
    };
    let Analytic { machine, layout, .. } = analytic;
    let forecasts = || steps(predictions);
    let layers = forecasts().map(|(name, f)| format!("{name} {:?}", f.layers)).collect::<Vec<_>>().join("; ");
    let shown = forecasts().map(|(name, f)| format!("{name} {}", f.stage_layout)).collect::<Vec<_>>().join("; ");
    let shown = if layout.layout.is_some() { format!("Layout: {shown}. ") } else { String::new() };
    let outside: BTreeSet<&str> = forecasts().flat_map(|(_, f)| f.outside.iter().map(String::as_str)).collect();
    let outside = outside.into_iter().collect::<Vec<_>>().join("; ");
    let outside = if outside.is_empty() { outside } else { format!("Less certain than usual: {outside}. ") };
    let caption = format!(
        "{:.2} G parameters{} on {} {}: {layout}; {}, {}, attention {}. Layers: {layers}. {shown}{outside}\
         An iteration is the makespan plus the end of a step: data, optimizer, and what the host does after the passes. TFLOP/s and MFU count products and all attention scores, \
         without recomputation; MFU is of the dense 16-bit peak.",
        analytic.spec.parameters() as f64 / 1e9,
        parameters_beside(analytic),
        layout.gpus(),
        machine.hardware.name,
        layout.precision,
        machine.stack.name,
        analytic.attention(),
    );
    Table::new(caption, &header, forecasts().map(row).collect())
}

/// Describes the memory of the fullest devices, for mixtures of experts.
fn memory_caption(predictions: &[Predicted]) -> String {
    let mut caption = "Memory of the fullest device".to_string();
    for (name, forecast) in steps(predictions) {
        let part = forecast.memory.fullest().of_which;
        let named = [
            ("expert weights", part.expert_weights),
            ("their gradients", part.expert_gradients),
            ("their optimizer", part.expert_optimizer),
            ("expert activations", part.expert_activations),
            ("attention activations", part.attention_activations),
            ("prediction layers", part.prediction_activations),
            ("logits", part.logits),
            ("dispatch buffers", part.dispatch_buffers),
        ];
        let named = named.into_iter().filter(|(_, bytes)| *bytes > 0);
        let words: Vec<String> = named.map(|(what, bytes)| format!("{what} {}", gibibytes(bytes))).collect();
        if !words.is_empty() {
            caption += &format!("; {name}, of which {}", words.join(", "));
        }
    }
    caption
}

/// Makes a table of the memory of the fullest device, one row per schedule.
pub fn memory_table(predictions: &[Predicted]) -> Table {
    let header =
        ["schedule", "device", "weights", "gradients", "optimizer", "activations", "buffers", "total", "of", "fits"];
    let row = |(name, f): (&String, &StepEstimate)| {
        let device = f.memory.fullest();
        let bytes =
            [device.weights, device.gradients, device.optimizer, device.activations, device.buffers, device.total];
        let names = [name.clone(), device.device.to_string()];
        let fits = if f.memory.fits { "yes" } else { "no" };
        let rest = [gibibytes(f.memory.capacity_bytes), fits.to_string()];
        names.into_iter().chain(bytes.map(gibibytes)).chain(rest).collect()
    };
    Table::new(memory_caption(predictions), &header, steps(predictions).map(row).collect())
}

/// Returns the layers of each stage: `9,9,8,6`.
pub(crate) fn listed(layers: &[usize]) -> String {
    layers.iter().map(usize::to_string).collect::<Vec<_>>().join(",")
}

/// Makes a table of the splits that `balance` found, before and after, one row per schedule.
pub fn balance(predictions: &[Predicted]) -> Option<Table> {
    let row = |one: &Predicted| {
        let (unit, found) = (&one.figures.time_unit, one.figures.balance.as_ref()?);
        let (now, before) = found.times();
        let time =
            |time: f64| if found.iteration_s.is_some() { quantity(1e3 * time, "ms") } else { quantity(time, unit) };
        Some(vec![
            one.figures.schedule.clone(),
            listed(&found.layers_before),
            listed(&found.layers),
            time(before) + if found.fits_before { "" } else { ", does not fit" },
            time(now),
            format!("{:+.1} %", 100.0 * (now / before - 1.0)),
            if found.is_optimal { "no split is better" } else { "best of those tried" }.to_string(),
        ])
    };
    let rows: Vec<Vec<String>> = predictions.iter().filter_map(row).collect();
    let at_typical = predictions.iter().any(|one| one.figures.metrics.typical_speed.is_some());
    let caption = "Layers of each stage, before and after balancing";
    let caption = format!("{caption}{}", if at_typical { ", at the machine's median speed" } else { "" });
    let on_hardware =
        predictions.iter().filter_map(|one| one.figures.balance.as_ref()).any(|one| one.iteration_s.is_some());
    let what = if on_hardware { "iteration" } else { "makespan" };
    let header = ["schedule", "layers", "balanced", what, "then", "change", "proof"];
    (!rows.is_empty()).then(|| Table::new(caption, &header, rows))
}
