//! What can go wrong in a run.

use crate::runs::{Draw, Run, SimOp};

#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// A stage takes this many times as long.
    Stage(u32, f64),
    Device(u32, f64),
    /// Devices from the first to the last.
    Node(u32, u32, f64),
    /// Messages between two devices take so many ns.
    Link([u32; 2], f64),
    AllLinks(f64),
    /// A host starts each op so many ns late.
    Host(u32, f64),
    AllHosts(f64),
    /// The host sleeps for so many ns before an op.
    Pause(usize, f64),
    /// An op takes this many times as long.
    Op(usize, f64),
}

impl Fault {
    pub fn draw(draw: &mut Draw, run: &Run) -> Fault {
        let device = draw.below(u64::from(run.devices)) as u32;
        let (factor, ms) = (draw.between(1.12, 1.8), draw.between(1.0, 5.0) * 1e6);
        let op = draw.below(run.ops.len() as u64) as usize;
        match draw.below(9) {
            0 => Fault::Stage(draw.below(u64::from(run.devices * run.chunks)) as u32, factor),
            1 => Fault::Device(device, factor),
            2 if run.devices >= 4 => {
                let size = 2 + draw.below(u64::from(run.devices / 2 - 1)) as u32;
                let first = draw.below(u64::from(run.devices - size + 1)) as u32;
                Fault::Node(first, first + size - 1, factor)
            }
            3 => {
                let links = run.links();
                Fault::Link(links[draw.below(links.len() as u64) as usize], 2.0 * ms)
            }
            4 => Fault::AllLinks(ms),
            5 if run.devices >= 3 => Fault::Host(device, ms),
            6 => Fault::AllHosts(ms),
            7 => Fault::Op(op, draw.between(2.0, 8.0)),
            _ => Fault::Pause(op, draw.between(20.0, 200.0) * 1e6),
        }
    }

    pub fn kind(&self) -> &'static str {
        match self {
            Fault::Stage(..) => "stage",
            Fault::Device(..) => "device",
            Fault::Node(..) => "node",
            Fault::Link(..) => "link",
            Fault::AllLinks(_) => "all links",
            Fault::Host(..) => "host",
            Fault::AllHosts(_) => "all hosts",
            Fault::Pause(..) => "pause",
            Fault::Op(..) => "op",
        }
    }

    /// Whether a run with both has no answer: two faults of one kind that no timeline tells apart.
    pub fn hides(&self, other: &Fault) -> bool {
        self != other && self.kind() == other.kind()
    }

    pub fn message(&self, ns: f64, link: [u32; 2]) -> f64 {
        match self {
            Fault::Link(slow, of_link) if *slow == link => ns + of_link,
            Fault::AllLinks(more) if link[0] != link[1] => ns + more,
            _ => ns,
        }
    }

    pub fn host(&self, ns: f64, device: u32) -> f64 {
        match self {
            Fault::Host(slow, more) if *slow == device => ns + more,
            Fault::AllHosts(more) => ns + more,
            _ => ns,
        }
    }

    pub fn pause(&self, at: usize) -> f64 {
        match self {
            Fault::Pause(op, ns) if *op == at => *ns,
            _ => 0.0,
        }
    }

    pub fn lasts(&self, ns: f64, at: usize, op: &SimOp) -> f64 {
        match self {
            Fault::Stage(stage, factor) if *stage == op.stage => ns * factor,
            Fault::Device(device, factor) if *device == op.device => ns * factor,
            Fault::Node(first, last, factor) if (*first..=*last).contains(&op.device) => ns * factor,
            Fault::Op(slow, factor) if *slow == at => ns * factor,
            _ => ns,
        }
    }
}
