//! Measurements of one device: time, throughput, energy and preemption of a kernel (Eq. 35, §6.2 and Table 7).

use tidemill_plan::units::{Bytes, BytesPerSecond, Joules, Seconds, Watts};

/// Returns t (Eq. 35): the time for reading plus the time for computing, which do not overlap.
pub(crate) fn kernel_time(io: Seconds, compute: Seconds) -> Seconds {
    io + compute
}

/// Returns the throughput of Table 7.
pub(crate) fn throughput(input: Bytes, time: Seconds) -> BytesPerSecond {
    input / time
}

/// Returns the energy of Table 7: `power` for the whole of `time`.
pub(crate) fn energy(power: Watts, time: Seconds) -> Joules {
    power * time
}

/// Returns Delay_k (§6.2): the mean wait of a request for a kernel that looks for requests every `piece` bytes.
pub(crate) fn mean_delay(piece: Bytes, throughput: BytesPerSecond) -> Seconds {
    piece / throughput * 0.5
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By hand: 32 KiB at 4 MiB/s take 7.8125 ms, and on average a request arrives in the middle.
    #[test]
    fn delay_throughput_and_energy_match_hand_computation() {
        let delay = mean_delay("32 KiB".parse().unwrap(), "4 MiB/s".parse().unwrap());
        assert!((delay.get() - 3.906_25e-3).abs() < 1e-12);
        let time = kernel_time(Seconds::new(2.4), Seconds::new(17.6));
        assert_eq!(
            throughput("100 MiB".parse().unwrap(), time),
            "5 MiB/s".parse().unwrap()
        );
        assert!((energy(Watts::new(1.4), time).get() - 28.0).abs() < 1e-12);
    }
}
