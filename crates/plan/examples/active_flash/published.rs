//! Published figures of the Active Flash paper, exactly as printed; none of them is computed.

use tidemill_plan::model::Approach;
use tidemill_plan::model::staging::StagingConstraint;

/// Names of the applications, in the order of Tables 1 and 4.
pub(crate) const APPLICATIONS: [&str; 6] = ["CHIMERA", "VULCAN", "POP", "S3D", "GTC", "GYRO"];

/// Row of the paper's Table 4.
#[derive(Debug)]
pub(crate) struct Table4Row {
    /// Approach to staging that the row is about.
    pub(crate) approach: Approach,
    /// Constraint of staging that limits the ratios.
    pub(crate) constraint: StagingConstraint,
    /// Capacity in GB (of 2^30 bytes), for rows about the constraint of capacity.
    pub(crate) capacity: Option<&'static str>,
    /// Staging ratio of each application.
    pub(crate) ratios: [&'static str; 6],
}

/// Rows of the paper's Table 4.
pub(crate) const TABLE_4: [Table4Row; 9] = [
    Table4Row {
        approach: Approach::ActiveFlash,
        constraint: StagingConstraint::Capacity,
        capacity: Some("32 GiB"),
        ratios: ["1", "2571", "233", "18", "6", "166"],
    },
    Table4Row {
        approach: Approach::ActiveFlash,
        constraint: StagingConstraint::Capacity,
        capacity: Some("64 GiB"),
        ratios: ["1", "4500", "461", "36", "12", "333"],
    },
    Table4Row {
        approach: Approach::ActiveFlash,
        constraint: StagingConstraint::Bandwidth,
        capacity: None,
        ratios: ["29", "29", "29", "29", "29", "29"],
    },
    Table4Row {
        approach: Approach::ActiveFlash,
        constraint: StagingConstraint::Endurance,
        capacity: None,
        ratios: ["1", "2268", "245", "20", "10", "204"],
    },
    Table4Row {
        approach: Approach::ActiveFlash,
        constraint: StagingConstraint::Restart,
        capacity: None,
        ratios: ["4", "896218", "4054", "240", "42", "1758"],
    },
    Table4Row {
        approach: Approach::AnalysisNode,
        constraint: StagingConstraint::Capacity,
        capacity: Some("16 GiB"),
        ratios: ["1", "1285", "117", "9", "3", "83"],
    },
    Table4Row {
        approach: Approach::AnalysisNode,
        constraint: StagingConstraint::Capacity,
        capacity: Some("32 GiB"),
        ratios: ["1", "2571", "233", "18", "6", "166"],
    },
    Table4Row {
        approach: Approach::AnalysisNode,
        constraint: StagingConstraint::Capacity,
        capacity: Some("64 GiB"),
        ratios: ["1", "4500", "461", "36", "12", "333"],
    },
    Table4Row {
        approach: Approach::AnalysisNode,
        constraint: StagingConstraint::Bandwidth,
        capacity: None,
        ratios: ["2250", "2250", "2250", "2250", "2250", "2250"],
    },
];

/// Row of the paper's Table 5, with prices in dollars.
#[derive(Debug)]
pub(crate) struct Table5Row {
    /// Approach to analysis.
    pub(crate) approach: Approach,
    /// Staging ratio.
    pub(crate) ratio: f64,
    /// Price of the infrastructure.
    pub(crate) infrastructure: &'static str,
    /// Price of energy.
    pub(crate) energy: &'static str,
    /// Sum of both prices, as printed.
    pub(crate) total: &'static str,
}

/// Rows of the paper's Table 5. At ratios 30 and 300 the table has no figures for active flash: no application is feasible.
pub(crate) const TABLE_5: [Table5Row; 4] = [
    Table5Row {
        approach: Approach::ActiveFlash,
        ratio: 10.0,
        infrastructure: "180000",
        energy: "-19131",
        total: "160866",
    },
    Table5Row {
        approach: Approach::AnalysisNode,
        ratio: 10.0,
        infrastructure: "1818000",
        energy: "566375",
        total: "2384375",
    },
    Table5Row {
        approach: Approach::AnalysisNode,
        ratio: 30.0,
        infrastructure: "606000",
        energy: "158193",
        total: "642993",
    },
    Table5Row {
        approach: Approach::AnalysisNode,
        ratio: 300.0,
        infrastructure: "60600",
        energy: "31072",
        total: "67432",
    },
];

/// Measurements of a row of Table 7 on the device or on the host.
#[derive(Debug)]
pub(crate) struct MeasuredSide {
    /// Seconds of I/O and of computing: these measured times are inputs of the models.
    pub(crate) seconds: (f64, f64),
    /// Throughput in MB/s, of 2^20 bytes.
    pub(crate) throughput: &'static str,
    /// Energy in joules.
    pub(crate) energy: &'static str,
}

/// Row of the paper's Table 7: 100 MB (of 2^20 bytes) processed by one kernel.
#[derive(Debug)]
pub(crate) struct Table7Row {
    /// Name of the kernel.
    pub(crate) kernel: &'static str,
    /// Measurement on the device.
    pub(crate) device: MeasuredSide,
    /// Measurement on the host.
    pub(crate) host: MeasuredSide,
}

const fn measured(
    seconds: (f64, f64),
    throughput: &'static str,
    energy: &'static str,
) -> MeasuredSide {
    MeasuredSide {
        seconds,
        throughput,
        energy,
    }
}

/// Rows of the paper's Table 7.
pub(crate) const TABLE_7: [Table7Row; 4] = [
    Table7Row {
        kernel: "max",
        device: measured((2.4, 19.8), "4.5", "31"),
        host: measured((2.6, 0.4), "33.3", "288"),
    },
    Table7Row {
        kernel: "mean",
        device: measured((2.4, 22.1), "4.0", "34"),
        host: measured((2.6, 0.4), "33.1", "290"),
    },
    Table7Row {
        kernel: "standard deviation",
        device: measured((2.4, 27.7), "3.3", "42"),
        host: measured((2.6, 0.5), "32.0", "300"),
    },
    Table7Row {
        kernel: "linear regression",
        device: measured((2.4, 49.6), "1.9", "73"),
        host: measured((2.6, 1.1), "26.8", "357"),
    },
];

/// Size of the input of Table 7.
pub(crate) const TABLE_7_INPUT: &str = "100 MiB";
/// Power of the prototype while it analyses (§6.3).
pub(crate) const PROTOTYPE_POWER: &str = "1.4 W";
/// Power of the prototype's host while it analyses (§6.3).
pub(crate) const HOST_POWER: &str = "96 W";
/// Number of bytes that a kernel processes between checks for requests (§6.2).
pub(crate) const PREEMPTION_PIECE: &str = "32 KiB";
