//! What was understood of a job, in words.

use crate::job::Job;
use crate::reading::Reading;

impl Job {
    /// Says in one sentence what was understood: model, layout, batch, precision, and how many options have no effect.
    pub fn sentence(&self) -> String {
        let read = &self.reading;
        let parts = [model(self), layout(read), batch(read), memory(read), further(self)];
        let mut text = parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(", ");
        let count = self.ignored.len();
        if count > 0 {
            text += &format!("; {count} option{} without effect", if count == 1 { "" } else { "s" });
        }
        if !self.not_modelled.is_empty() {
            let all: Vec<&str> = self.not_modelled.iter().map(|one| one.option.as_str()).collect();
            text += &format!("; not modelled: {}", all.join(", "));
        }
        text
    }

    /// Says what each option changes that is not modelled, which options are unknown, what is assumed, and what the framework refuses: a line each.
    pub fn details(&self) -> Vec<String> {
        let changes = self.not_modelled.iter().map(|one| format!("{} {}", one.option, one.changes));
        let unknown = self.unknown.iter().map(|one| {
            let near =
                one.nearest.as_ref().map_or_else(String::new, |near| format!("; the nearest that it has is {near}"));
            format!("{}: {} has no option {}{near}", one.place, self.framework, one.option)
        });
        let assumed = self.assumed.iter().map(|one| format!("assumed: {one}"));
        let refused = self.refused.iter().map(|why| format!("{} refuses it: {why}", self.framework));
        changes.map(|text| format!("not modelled: {text}")).chain(unknown).chain(assumed).chain(refused).collect()
    }
}

fn model(job: &Job) -> String {
    let read = &job.reading;
    let kind = match (&job.model, job.shape.get("arch").and_then(|arch| arch.as_str())) {
        (Some(name), _) => name.as_str(),
        (None, _) if read.layers.is_none() => "a model that the job does not describe",
        (None, Some("gpt")) => "GPT",
        _ => "Llama",
    };
    let layers = read.layers.map(|layers| format!("{layers} layers"));
    let width = read.hidden.map(|hidden| format!("{hidden} wide"));
    let experts = read.experts.map(|count| format!("{count} experts, {} per token", read.top_k.unwrap_or(1)));
    [Some(kind.to_string()), layers, width, experts].into_iter().flatten().collect::<Vec<_>>().join(", ")
}

fn layout(read: &Reading) -> String {
    let sizes = [("tp", read.tp), ("pp", read.pp), ("vp", read.vp), ("cp", read.cp), ("ep", read.ep), ("dp", read.dp)];
    let is_said = |name: &str, size: u32| size > 1 || ["tp", "pp", "dp"].contains(&name);
    let named = sizes.into_iter().filter_map(|(name, size)| Some((name, size.filter(|&size| is_said(name, size))?)));
    let text = named.map(|(name, size)| format!("{name} {size}")).collect::<Vec<_>>().join(", ");
    match read.world {
        Some(world) => format!("{text} from {world} GPU{}", if world == 1 { "" } else { "s" }),
        None => text,
    }
}

fn batch(read: &Reading) -> String {
    let tokens = read.seq.map_or_else(String::new, |seq| format!("{seq} tokens"));
    match (read.global_batch, read.micro_batch) {
        (Some(batch), Some(size)) => format!("{batch} x {tokens} in micro-batches of {size}"),
        (Some(batch), None) => format!("{batch} x {tokens}"),
        (None, Some(size)) => format!("micro-batches of {size} x {tokens}"),
        (None, None) => tokens,
    }
}

fn further(job: &Job) -> String {
    let said = [("shard", "shard"), ("optimizer-offload", "optimizer offload"), ("lora", "LoRA"), ("packed", "packed")];
    let parts = said.into_iter().filter_map(|(key, name)| Some(format!("{name} {}", job.further.get(key)?)));
    parts.collect::<Vec<_>>().join(", ")
}

fn memory(read: &Reading) -> String {
    let sharded = match read.zero {
        Some(1) => Some("distributed optimizer".to_string()),
        Some(2) => Some("sharded gradients".to_string()),
        Some(3) => Some("sharded weights".to_string()),
        _ => None,
    };
    let layers = read.recompute_method.as_ref().zip(read.recompute_layers.filter(|layers| *layers > 1));
    let layers = layers.map_or_else(String::new, |(method, layers)| format!(" ({method}, {layers} layers)"));
    let recompute = read.recompute.as_ref().map(|what| format!("recompute {what}{layers}"));
    let sequence = read.sequence_parallel.filter(|on| *on).map(|_| "sequence parallel".to_string());
    let parts = [read.precision.clone(), sharded, sequence, recompute];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}
