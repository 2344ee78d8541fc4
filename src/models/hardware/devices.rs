//! Pipeline devices whose GPUs or links differ from the others'.

use super::Hardware;
use std::fmt;
use std::str::FromStr;

/// A link with less bandwidth.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SlowLink {
    /// A pipeline device.
    pub device: u32,
    /// The device at the other end; `None`: all links of `device`.
    pub other: Option<u32>,
    /// Divisor of the bandwidth.
    pub factor: f64,
}

impl FromStr for SlowLink {
    type Err = String;

    /// Parses `1-2=4`, the link between the pipeline devices 1 and 2, or `1=4`, all links of device 1.
    fn from_str(text: &str) -> Result<SlowLink, String> {
        let wrong = || format!("expected DEVICE-DEVICE=FACTOR or DEVICE=FACTOR, found '{text}'; write it as in 1-2=4");
        let (ends, factor) = text.split_once('=').ok_or_else(wrong)?;
        let number = |text: &str| text.trim().parse::<u32>().map_err(|_| wrong());
        let (device, other) = match ends.split_once('-') {
            Some((one, other)) => (number(one)?, Some(number(other)?)),
            None => (number(ends)?, None),
        };
        let factor: f64 = factor.trim().parse().map_err(|_| wrong())?;
        match () {
            () if other == Some(device) => Err(format!("expected two devices, found {device} twice; name both ends")),
            () if !(1.0..=1e6).contains(&factor) => Err(format!("expected a factor from 1 to 1000000, found {factor}")),
            () => Ok(SlowLink { device, other, factor }),
        }
    }
}

impl fmt::Display for SlowLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let other = self.other.map_or_else(String::new, |other| format!("-{other}"));
        write!(f, "{}{other}={}", self.device, self.factor)
    }
}

/// A kind of GPU and the number of successive pipeline devices that have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HardwareKind<'a> {
    /// Name or file.
    pub name: &'a str,
    /// Number of devices.
    pub devices: u32,
}

/// Returns the kinds of a text such as `h100-sxm:4,a100-sxm-80gb:4`; none if it names one kind for all devices.
///
/// # Errors
/// A kind without its number of devices.
pub fn kinds(text: &str) -> Result<Vec<HardwareKind<'_>>, String> {
    let counted = |piece: &str| piece.rsplit_once(':').is_some_and(|(_, count)| count.parse::<u32>().is_ok());
    if !text.contains(',') && !counted(text) {
        return Ok(Vec::new());
    }
    let kind = |piece: &'_ str| -> Option<(usize, u32)> {
        let (name, count) = piece.rsplit_once(':')?;
        count.parse().ok().filter(|count| (1..=1 << 16).contains(count)).map(|count| (name.len(), count))
    };
    let kinds = text.split(',').map(|piece| match kind(piece) {
        Some((end, devices)) => Ok(HardwareKind { name: &piece[..end], devices }),
        None => Err(format!(
            "expected NAME:DEVICES for each kind of GPU, found '{piece}'; write it as in h100-sxm:4,a100-sxm-80gb:4"
        )),
    });
    kinds.collect()
}

impl Hardware {
    /// Returns hardware called `name` whose pipeline devices are, in order, of these kinds, each with its number of devices.
    pub fn of_kinds(name: &str, kinds: &[Hardware], counts: &[u32]) -> Option<Hardware> {
        let first = kinds.first()?;
        if kinds.iter().all(|kind| kind == first) {
            return Some(Hardware { device_count: counts.iter().sum(), ..first.clone() });
        }
        let mut mixed = Hardware { name: name.to_string(), device_count: 0, ..first.clone() };
        for (kind, &count) in kinds.iter().zip(counts) {
            let own = mixed.device_count..mixed.device_count.saturating_add(count);
            mixed.device_count = own.end;
            if kind != first {
                mixed.devices.extend(own.map(|device| (device, kind.clone())));
            }
        }
        Some(mixed)
    }

    /// Returns the GPUs of a pipeline device.
    pub fn of_device(&self, device: u32) -> &Hardware {
        self.devices.get(&device).unwrap_or(self)
    }

    /// Makes the kernels of a pipeline device take `factor` times as long. Its host, links and network stay.
    pub fn slow_device(&mut self, device: u32, factor: f64) {
        let factor = factor.clamp(1e-6, 1e9);
        self.change(device, |own| {
            let speeds = [
                &mut own.bf16_tflops,
                &mut own.fp32_tflops,
                &mut own.fp8_tflops,
                &mut own.fp4_tflops,
                &mut own.power_watts,
            ];
            speeds.into_iter().chain([&mut own.memory_gbytes_per_s]).for_each(|speed| *speed /= factor);
            own.kernel_us *= factor;
        });
    }

    /// Divides the bandwidth of a link between two pipeline devices, or of all links of one: to its node, and to other nodes.
    pub fn slow_link(&mut self, link: SlowLink) {
        if link.other.is_some() {
            return self.slow_links.push(link);
        }
        self.change(link.device, |own| {
            let speeds = [&mut own.link_gbytes_per_s, &mut own.network_gbps_per_gpu];
            let measured = [&mut own.reduce_gbytes_per_s, &mut own.exchange_gbytes_per_s];
            speeds.into_iter().chain(measured).for_each(|speed| *speed /= link.factor);
        });
    }

    fn change(&mut self, device: u32, change: impl Fn(&mut Hardware)) {
        let plain = Hardware { devices: Default::default(), slow_links: Vec::new(), device_count: 0, ..self.clone() };
        let mut own = self.devices.remove(&device).unwrap_or_else(|| plain.clone());
        change(&mut own);
        if own != plain {
            self.devices.insert(device, own);
        }
    }

    /// Returns the divisor of the bandwidth between two pipeline devices.
    pub fn link_factor(&self, one: u32, other: u32) -> f64 {
        let is_it =
            |link: &&SlowLink| [(one, other), (other, one)].contains(&(link.device, link.other.unwrap_or(link.device)));
        self.slow_links.iter().filter(is_it).map(|link| link.factor).product()
    }

    /// Sets the memory of all devices.
    pub fn set_memory(&mut self, bytes: u64) {
        let own = self.devices.values_mut().map(|own| &mut own.memory_gib);
        own.chain([&mut self.memory_gib]).for_each(|gib| *gib = bytes as f64 / f64::from(1 << 30));
    }

    /// Checks that a pipeline of `devices` has the devices that are named.
    ///
    /// # Errors
    /// Another number of devices, or a device that does not exist.
    pub fn check_devices(&self, devices: u32) -> Result<(), String> {
        if self.device_count > 0 && self.device_count != devices {
            let found = self.device_count;
            return Err(format!(
                "expected `hardware` to name the GPUs of the {devices} devices of `stages`, found {found}; change the numbers after the colons"
            ));
        }
        let links = self.slow_links.iter().flat_map(|link| [Some(link.device), link.other]).flatten();
        match self.devices.keys().copied().chain(links).find(|&device| device >= devices) {
            Some(device) => Err(format!(
                "`straggler` or `slow-link` names device {device}, but there are devices 0 to {}",
                devices.saturating_sub(1)
            )),
            None => Ok(()),
        }
    }

    /// Returns the mean 16-bit peak of `devices` pipeline devices, in FLOP/s, of GPUs that are not slowed down.
    pub fn mean_peak(&self, devices: u32) -> f64 {
        let of = |device| Some(self.of_device(device)).filter(|own| own.name != self.name).unwrap_or(self).bf16_tflops;
        if self.devices.is_empty() {
            self.bf16_tflops * 1e12
        } else {
            (0..devices).map(of).sum::<f64>() / f64::from(devices) * 1e12
        }
    }
}
