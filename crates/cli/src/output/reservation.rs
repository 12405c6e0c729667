//! Reserved space of the burst tier.

use super::{View, table, write_table};
use crate::format;
use serde_json::{Value, json};
use std::io::{self, Write};
use tidemill_client::users;
use tidemill_core::display::{escaped, line};
use tidemill_wire::v1;

/// Output of `tidemill stage reservations`.
#[derive(Debug)]
pub(crate) struct ReservationsView(pub(crate) Vec<v1::SpaceReservation>);

impl View for ReservationsView {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let header = [
            "RESERVATION",
            "NODE",
            "BYTES",
            "USED",
            "OPEN",
            "OWNER",
            "ENDS (UTC)",
            "DIRECTORY",
        ];
        let mut rows = table(&header, &[0, 1, 2, 3, 4]);
        for reservation in &self.0 {
            rows.add_row([
                reservation.id.to_string(),
                reservation.node.to_string(),
                format::bytes(reservation.bytes),
                format::bytes(reservation.used),
                reservation.open.to_string(),
                users::name(reservation.uid),
                format::time(reservation.until),
                line(&String::from_utf8_lossy(&reservation.directory)),
            ]);
        }
        write_table(out, &rows)
    }

    fn json(&self) -> Value {
        self.0.iter().map(reservation_json).collect()
    }
}

/// Returns a reservation as JSON.
pub(crate) fn reservation_json(reservation: &v1::SpaceReservation) -> Value {
    json!({
        "reservation": reservation.id,
        "directory": escaped(&reservation.directory),
        "node": reservation.node,
        "bytes": reservation.bytes,
        "used": reservation.used,
        "open": reservation.open,
        "uid": reservation.uid,
        "since": reservation.since,
        "until": reservation.until,
    })
}
