//! The few kinds of events that a pipeline's ops are recovered from, out of the many in a profiler's trace.

use super::label::{Label, LabelRules};

/// What an event tells about the pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// `ProfilerStep#N`.
    Step(u64),
    /// A range that the schedule names, such as `PP:0F3`.
    Label(Label),
    /// A host op that autograd recorded, with its sequence number.
    Forward(i64),
    /// A call of autograd's engine; the sequence number is the forward op's, -1 if it has none.
    Backward(i64),
    /// Another op of the host.
    Host,
    /// `aten::detach`, which belongs to no forward: a schedule detaches what it sends.
    Detach,
    /// `c10d::send`.
    Send,
    /// `c10d::recv_`.
    Receive,
    /// The range of gloo that ends when somebody waited for the send.
    SendDone,
    /// The range of gloo that ends when the receiver goes on.
    ReceiveDone,
    /// A collective, such as the reduction of gradients.
    Collective,
    /// The optimizer's step.
    Optimizer,
    /// A call that launches work on the GPU, by correlation.
    Launch(u64),
    /// Work on the GPU, by correlation.
    Kernel(u64),
    /// NCCL's work on the GPU, by correlation.
    Transfer(u64),
}

/// One event, in nanoseconds of its process's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    pub start: i64,
    pub end: i64,
    pub thread: u64,
    pub class: Class,
}

/// The fields of a trace's event that decide its class.
#[derive(Clone, Debug, Default)]
pub struct Fields<'a> {
    pub category: &'a str,
    pub name: &'a str,
    pub sequence: Option<i64>,
    /// `Fwd thread id`: not 0 for what autograd's engine calls.
    pub forward_thread: i64,
    pub correlation: Option<u64>,
}

const ENGINE: &str = "autograd::engine::evaluate_function: ";

impl Class {
    /// Returns the class of an event; `None` if it tells nothing about the pipeline.
    pub fn of(fields: &Fields<'_>, rules: &LabelRules) -> Option<Class> {
        let name = fields.name;
        match fields.category {
            "kernel" | "gpu_memcpy" | "gpu_memset" => {
                let correlation = fields.correlation?;
                let is_transfer = ["nccl", "void nccl"].iter().any(|start| name.starts_with(start));
                return Some(if is_transfer { Class::Transfer(correlation) } else { Class::Kernel(correlation) });
            }
            "cuda_runtime" | "cuda_driver" => return fields.correlation.map(Class::Launch),
            "gpu_user_annotation" | "ac2g" | "fwdbwd" | "Trace" | "overhead" => return None,
            _ => {}
        }
        if let Some(label) = rules.label(name) {
            return Some(Class::Label(label));
        }
        if let Some(number) = name.strip_prefix("ProfilerStep#") {
            return number.parse().ok().map(Class::Step);
        }
        match name {
            "gloo:send" => return Some(Class::SendDone),
            "gloo:recv" => return Some(Class::ReceiveDone),
            "c10d::send" => return Some(Class::Send),
            "c10d::recv_" | "c10d::recv_any_source_" => return Some(Class::Receive),
            _ if name.starts_with("Optimizer.step#") => return Some(Class::Optimizer),
            _ if name.starts_with("c10d::") => return Some(Class::Collective),
            _ => {}
        }
        if fields.category != "cpu_op" {
            return None;
        }
        Some(match fields.sequence {
            _ if name.starts_with(ENGINE) => Class::Backward(fields.sequence.unwrap_or(-1)),
            _ if name.starts_with("aten::detach") => Class::Detach,
            Some(sequence) if fields.forward_thread == 0 => Class::Forward(sequence),
            _ => Class::Host,
        })
    }

    /// Whether it is an op of the host that computes.
    pub fn is_host_op(self) -> bool {
        matches!(self, Class::Forward(_) | Class::Backward(_) | Class::Host | Class::Detach)
    }
}
