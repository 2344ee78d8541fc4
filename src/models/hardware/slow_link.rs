//! A link between pipeline devices that has less bandwidth than others.

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
        let (device, other) = ends.split_once('-').map_or((ends, None), |(one, other)| (one, Some(other)));
        let (device, other) = (number(device)?, other.map(number).transpose()?);
        let factor: f64 = factor.trim().parse().map_err(|_| wrong())?;
        match () {
            () if other == Some(device) => Err(format!("expected two devices, found {device} twice; name both ends")),
            () if !(1.0..=1e6).contains(&factor) => Err(format!("expected a factor from 1 to 1000000, found {factor}")),
            () => Ok(SlowLink { device, other, factor }),
        }
    }
}
