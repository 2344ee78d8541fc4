//! One process's trace, read as a stream: PyTorch's profiler (Kineto, Chrome's format) and Nsight Systems' JSON.

use super::event::{Class, Event, Fields};
use super::label::LabelRules;
use super::scalar::Scalar;
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::fmt;
use std::io::Read;

/// Latest time, in ns from 1970: the year 2096.
const LATEST_NS: i64 = 4_000_000_000_000_000_000;

/// Name of the mark that PyTorch's profiler writes last.
pub const END: &str = "Record Window End";

/// A process group, as `distributedInfo` describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Group {
    /// `mesh_pp` for the ranks of a pipeline.
    pub name: String,
    pub ranks: Vec<u32>,
}

/// What a trace says about its process, and its events of interest.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    pub rank: Option<u32>,
    pub world_size: Option<u32>,
    pub groups: Vec<Group>,
    /// Version of PyTorch, if the trace has it.
    pub version: Option<String>,
    /// Time that all events are relative to, in ns.
    pub base_ns: i64,
    pub events: Vec<Event>,
    /// Whether it has a list of events at all.
    pub has_events: bool,
    /// Whether it is Nsight Systems'.
    pub is_nsight: bool,
    /// Whether PyTorch's profiler wrote it: then it has two marks after all events.
    pub is_kineto: bool,
    /// Whether the mark of the end is there.
    pub has_end: bool,
    /// From when to when the profiler recorded, as the other mark says.
    pub recorded: Option<(i64, i64)>,
    /// Number of events without a valid name or time.
    pub malformed: u64,
    /// Number of events with a field of a wrong type.
    pub odd: u64,
    /// Why the file could not be read to its end.
    pub cut: Option<String>,
}

impl Trace {
    /// Reads the JSON values of `reader` as far as possible.
    pub fn read(reader: impl Read, rules: &LabelRules) -> Trace {
        let mut trace = Trace::default();
        let mut json = serde_json::Deserializer::from_reader(reader);
        loop {
            match json.end() {
                Ok(()) => break,
                Err(error) if error.is_io() || error.is_eof() => {
                    trace.cut = Some(error.to_string());
                    break;
                }
                Err(_) => {} // another value follows
            }
            if let Err(error) = (Top { trace: &mut trace, rules }).deserialize(&mut json) {
                trace.cut = Some(error.to_string());
                break;
            }
        }
        trace.finish();
        trace
    }

    /// Makes times absolute, leaves out those out of range and sorts the events.
    pub fn finish(&mut self) {
        let base = self.base_ns;
        for event in &mut self.events {
            event.start = event.start.saturating_add(base);
            event.end = event.end.saturating_add(base);
        }
        self.recorded = self.recorded.map(|(start, end)| (start.saturating_add(base), end.saturating_add(base)));
        // Differences of times must be numbers, too.
        let before = self.events.len();
        self.events.retain(|event| event.start.max(event.end) < LATEST_NS && event.start.min(event.end) > -LATEST_NS);
        self.malformed += (before - self.events.len()) as u64;
        // An outer range comes before what it contains.
        self.events.sort_by_key(|event| (event.start, std::cmp::Reverse(event.end)));
    }

    /// Removes events that occur twice, and returns how many there were.
    pub fn remove_repeated(&mut self) -> usize {
        let before = self.events.len();
        self.events.dedup();
        before - self.events.len()
    }

    pub fn add(&mut self, class: Class, thread: Option<i64>, start: Option<i64>, end: Option<i64>) {
        match (start, end) {
            (Some(start), Some(end)) if end >= start => {
                self.events.push(Event { start, end, thread: thread.unwrap_or_default() as u64, class });
            }
            _ => self.malformed += 1,
        }
    }

    /// Splits what several processes recorded in one report, in the order of their numbers; those without ranges are left out.
    pub fn by_process(self) -> Vec<Trace> {
        // The upper bits of a global thread are the process.
        let process = |event: &Event| event.thread >> 24;
        let labelled = |event: &&Event| matches!(event.class, Class::Label(_));
        let mut processes: Vec<u64> = self.events.iter().filter(labelled).map(process).collect();
        processes.sort_unstable();
        processes.dedup();
        if processes.len() < 2 {
            return vec![self];
        }
        let of = |number: u64| {
            let events = self.events.iter().filter(|event| process(event) == number).copied().collect();
            Trace { events, malformed: 0, odd: 0, ..self.clone() }
        };
        processes.into_iter().map(of).collect()
    }
}

/// Reads a top-level value into a trace.
struct Top<'a> {
    trace: &'a mut Trace,
    rules: &'a LabelRules,
}

impl<'de> DeserializeSeed<'de> for Top<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Top<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a profiler's trace: an object with traceEvents, or a list of events")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Top { trace, rules } = self;
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "traceEvents" => map.next_value_seed(EventList { trace: &mut *trace, rules })?,
                "NvtxEvent" => {
                    trace.has_events = true;
                    trace.is_nsight = true;
                    let Nvtx { name, thread, start, end } = map.next_value()?;
                    if let Some(label) = rules.label(name.text()) {
                        trace.add(Class::Label(label), thread.whole(), start.whole(), end.whole());
                    }
                }
                "schemaVersion" => {
                    trace.is_kineto = true;
                    map.next_value::<IgnoredAny>()?;
                }
                "baseTimeNanoseconds" => trace.base_ns = base(&map.next_value()?),
                "distributedInfo" => map.next_value::<Distributed>()?.put(trace),
                "pytorch_version" | "torch_version" => {
                    trace.version =
                        Some(map.next_value::<Scalar>()?.text().to_string()).filter(|text| !text.is_empty());
                }
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<(), A::Error> {
        EventList { trace: self.trace, rules: self.rules }.visit_seq(list)
    }
}

/// Returns the time that events are relative to; 0 for none, and for one beyond 120 years.
fn base(value: &Scalar) -> i64 {
    value.whole().filter(|ns| ns.abs() < 4_000_000_000_000_000_000).unwrap_or_default()
}

/// Reads a list of events, one by one.
struct EventList<'a> {
    trace: &'a mut Trace,
    rules: &'a LabelRules,
}

impl<'de> DeserializeSeed<'de> for EventList<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for EventList<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of events")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let EventList { trace, rules } = self;
        trace.has_events = true;
        while let Some(event) = list.next_element::<EventElement>()? {
            let EventElement::Event(raw) = event else {
                trace.malformed += 1;
                continue;
            };
            trace.has_end |= raw.name.text() == END;
            if !raw.phase.text().is_empty() && raw.phase.text() != "X" {
                continue;
            }
            let fields = Fields {
                category: raw.category.text(),
                name: raw.name.text(),
                sequence: raw.sequence.whole(),
                forward_thread: raw.forward_thread.whole().unwrap_or_default(),
                correlation: raw.correlation.whole().map(|number| number as u64),
            };
            // Every complete event has a name. One with a field of a wrong type counts, as far as it can be read.
            if fields.name.is_empty() {
                trace.malformed += 1;
                continue;
            }
            trace.odd += u64::from(raw.is_odd);
            let (start, duration) = (raw.start.microseconds(), raw.duration.microseconds());
            let end = start.zip(duration).map(|(start, duration)| start + duration);
            if fields.category == "Trace" && fields.name.starts_with("PyTorch Profiler") {
                trace.recorded = start.zip(end);
            }
            let Some(class) = Class::of(&fields, rules) else { continue };
            trace.add(class, raw.thread.whole(), start, end);
        }
        Ok(())
    }
}

/// An element of the list of events.
enum EventElement {
    Event(Box<RawEvent>),
    Other,
}

#[derive(Default)]
struct RawEvent {
    phase: Scalar,
    category: Scalar,
    name: Scalar,
    thread: Scalar,
    start: Scalar,
    duration: Scalar,
    sequence: Scalar,
    forward_thread: Scalar,
    correlation: Scalar,
    /// Whether a field is of a wrong type.
    is_odd: bool,
}

struct ElementVisitor;

impl<'de> Deserialize<'de> for EventElement {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<EventElement, D::Error> {
        deserializer.deserialize_any(ElementVisitor)
    }
}

macro_rules! other {
    ($($visit:ident: $type:ty),*) => {
        $(fn $visit<E>(self, _: $type) -> Result<EventElement, E> {
            Ok(EventElement::Other)
        })*
    };
}

impl<'de> Visitor<'de> for ElementVisitor {
    type Value = EventElement;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an event")
    }

    other!(visit_bool: bool, visit_i64: i64, visit_u64: u64, visit_f64: f64, visit_str: &str);

    fn visit_unit<E>(self) -> Result<EventElement, E> {
        Ok(EventElement::Other)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<EventElement, A::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(EventElement::Other)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<EventElement, A::Error> {
        let mut event = Box::<RawEvent>::default();
        while let Some(key) = map.next_key::<String>()? {
            let field = match key.as_str() {
                "ph" => &mut event.phase,
                "cat" => &mut event.category,
                "name" => &mut event.name,
                "tid" => &mut event.thread,
                "ts" => &mut event.start,
                "dur" => &mut event.duration,
                "args" => {
                    map.next_value_seed(Arguments(&mut event))?;
                    continue;
                }
                _ => {
                    map.next_value::<IgnoredAny>()?;
                    continue;
                }
            };
            *field = map.next_value()?;
            let is_right = match key.as_str() {
                "ph" | "cat" | "name" => matches!(field, Scalar::Text(_)),
                _ => *field != Scalar::Other,
            };
            event.is_odd |= !is_right;
        }
        Ok(EventElement::Event(event))
    }
}

/// Reads an event's arguments.
struct Arguments<'a>(&'a mut RawEvent);

impl<'de> DeserializeSeed<'de> for Arguments<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

macro_rules! nothing {
    ($($visit:ident: $type:ty),*) => {
        $(fn $visit<E>(self, _: $type) -> Result<(), E> {
            self.0.is_odd = true;
            Ok(())
        })*
    };
}

impl<'de> Visitor<'de> for Arguments<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("arguments")
    }

    nothing!(visit_bool: bool, visit_i64: i64, visit_u64: u64, visit_f64: f64, visit_str: &str);

    fn visit_unit<E>(self) -> Result<(), E> {
        self.0.is_odd = true;
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        self.0.is_odd = true;
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            let field = match key.as_str() {
                "Sequence number" => &mut self.0.sequence,
                "Fwd thread id" => &mut self.0.forward_thread,
                "correlation" => &mut self.0.correlation,
                "$serde_json::private::Number" => {
                    self.0.is_odd = true; // a number in place of the arguments
                    map.next_value::<IgnoredAny>()?;
                    continue;
                }
                _ => {
                    map.next_value::<IgnoredAny>()?;
                    continue;
                }
            };
            *field = map.next_value()?;
            self.0.is_odd |= field.whole().is_none();
        }
        Ok(())
    }
}

/// A range in Nsight Systems' JSON, in ns.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Nvtx {
    #[serde(rename = "Text")]
    name: Scalar,
    #[serde(rename = "GlobalTid")]
    thread: Scalar,
    #[serde(rename = "Timestamp")]
    start: Scalar,
    #[serde(rename = "EndTimestamp")]
    end: Scalar,
}

/// Kineto's description of the process and its groups.
struct Distributed(serde_json::Value);

impl<'de> Deserialize<'de> for Distributed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Distributed, D::Error> {
        serde_json::Value::deserialize(deserializer).map(Distributed)
    }
}

impl Distributed {
    fn put(self, trace: &mut Trace) {
        let number = |value: &serde_json::Value| value.as_u64().and_then(|number| u32::try_from(number).ok());
        trace.rank = number(&self.0["rank"]);
        trace.world_size = number(&self.0["world_size"]);
        for group in self.0["pg_config"].as_array().into_iter().flatten() {
            let name = group["pg_desc"].as_str().unwrap_or_default().to_string();
            let ranks = group["ranks"].as_array().into_iter().flatten().filter_map(number).collect();
            trace.groups.push(Group { name, ranks });
        }
    }
}
