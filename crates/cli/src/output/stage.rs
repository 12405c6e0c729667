//! Files and reserved space in the burst tier.

use super::table::{Text, columns, listing};
use super::{Report, records};
use crate::files::ClusterPath;
use crate::format::{self, Bytes, Time};
use std::fmt::{self, Display, Formatter};
use tidemill_client::users;
use tidemill_wire::v1;

records! {
    /// Number and size of objects.
    #[derive(Copy, Default)]
    ObjectSum { objects: u64, bytes: Bytes }
}

impl ObjectSum {
    /// Adds one object.
    pub(crate) fn add(&mut self, bytes: u64) {
        self.objects += 1;
        self.bytes.0 = self.bytes.0.saturating_add(bytes);
    }
}

impl Display for ObjectSum {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} ({})",
            format::count(self.objects, "object"),
            self.bytes
        )
    }
}

records! {
    /// Locations of the files at or below a path.
    #[derive(Default)]
    Placed {
        path: ClusterPath, files: u64,
        /// Number of files without a sealed version.
        unsealed: u64,
        all: ObjectSum,
        /// Objects with a replica in the burst tier.
        in_tier: ObjectSum,
        /// Objects with replicas in the burst tier only.
        only_in_tier: ObjectSum,
    }
}

impl Report for Placed {
    fn text(&self, out: &mut Text) {
        write!(
            out,
            "{}: {}, {}; in the burst tier: {}, of which only there: {}",
            self.path,
            format::count(self.files, "file"),
            self.all,
            self.in_tier,
            self.only_in_tier
        );
        if self.unsealed > 0 {
            write!(
                out,
                "; {} not closed yet",
                format::count(self.unsealed, "file")
            );
        }
        writeln!(out);
    }
}

records! {
    /// Objects that `tidemill stage out` would copy and evict.
    StageOutPlan new(placed: &Placed, evicts: bool) {
        path: ClusterPath = placed.path.clone(),
        /// Always true.
        dry_run: bool = true,
        copied: ObjectSum = placed.only_in_tier, evicted: ObjectSum = if evicts { placed.in_tier } else { ObjectSum::default() },
        #[serde(skip)]
        evicts: bool,
    }
}

impl Report for StageOutPlan {
    fn text(&self, out: &mut Text) {
        write!(out, "{}: would copy {}", self.path, self.copied);
        if self.evicts {
            write!(out, " and evict {}", self.evicted);
        }
        writeln!(out);
    }
}

records! {
    /// Progress of a stage-in or a stage-out.
    Staged new(path: ClusterPath, staged: &v1::StageReply, stages_in: bool) {
        path: ClusterPath, files: u64 = staged.files,
        /// Number and bytes of the objects that are still to be copied.
        objects: u64 = staged.objects,
        bytes: Bytes = Bytes(staged.bytes),
        /// Number of objects that are still to be evicted.
        held: u64 = staged.held,
        /// Number of files that are being written.
        unsealed: u64 = staged.unsealed,
        /// Offline node with some of the bytes.
        offline: Option<u32> = staged.offline.checked_sub(1),
        /// Target node of a stage-in.
        node: Option<u32> = staged.node.checked_sub(1),
        #[serde(skip)]
        stages_in: bool,
    }
}

impl Report for Staged {
    fn text(&self, out: &mut Text) {
        write!(out, "{}: ", self.path);
        match (self.objects, self.held) {
            (0, 0) if self.stages_in => write!(out, "all that is closed is in the burst tier"),
            (0, 0) => write!(out, "all that is closed is stored"),
            (0, held) => write!(
                out,
                "stored; {held} still to be evicted from the burst tier"
            ),
            (objects, _) => write!(
                out,
                "{} ({}) still to be copied",
                format::count(objects, "object"),
                self.bytes
            ),
        }
        if let Some(node) = self.node {
            write!(out, " to node {node}");
        }
        if self.unsealed > 0 {
            write!(
                out,
                ", {} being written",
                format::count(self.unsealed, "file")
            );
        }
        if let Some(node) = self.offline {
            write!(out, "; node {node}, which has some of it, is offline");
        }
        writeln!(out);
    }
}

listing! {
    /// Reserved space of the burst tier.
    Reservations of Reservation
}

records! {
    /// Reserved space on a node of the burst tier.
    Reservation from of: v1::SpaceReservation {
        reservation: u64 = of.id,
        /// The space is for new files below this directory.
        directory: ClusterPath,
        node: u32, bytes: Bytes, used: Bytes,
        /// Number of open files that use the reservation.
        open: u64,
        uid: u32, since: Time, until: Time,
    }
}

columns! { one: Reservation {
    right "RESERVATION" => one.reservation,
    right "NODE" => one.node,
    right "BYTES" => one.bytes,
    right "USED" => one.used,
    right "OPEN" => one.open,
    left "OWNER" => users::name(one.uid),
    left "ENDS (UTC)" => one.until,
    left "DIRECTORY" => one.directory,
} }
