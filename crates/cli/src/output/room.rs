//! Rooms.

use super::{View, table, write_table};
use crate::format;
use serde_json::{Value, json};
use std::io::{self, Write};
use tidemill_client::users;
use tidemill_core::shown::line;
use tidemill_wire::v1;

/// What `tidemill room list` shows.
#[derive(Debug)]
pub(crate) struct RoomsView(pub(crate) Vec<v1::Room>);

impl View for RoomsView {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let header = [
            "ROOM",
            "OWNER",
            "MODE",
            "FILES",
            "USED",
            "QUOTA",
            "ENDS (UTC)",
            "MEMBERS",
        ];
        let mut rows = table(&header, &[3, 4, 5]);
        for room in &self.0 {
            let members = room.members.iter();
            let members = members.map(|one| format!("{} ({})", one.member, users::name(one.uid)));
            rows.add_row([
                line(&room.name),
                users::name(room.uid),
                format::mode('d', room.mode),
                room.files.to_string(),
                format::bytes(room.used_bytes),
                match room.quota_bytes {
                    0 => "-".into(),
                    quota => format::bytes(quota),
                },
                match room.expires {
                    0 => "-".into(),
                    expires => format::time(expires),
                },
                members.collect::<Vec<_>>().join(", "),
            ]);
        }
        write_table(out, &rows)
    }

    fn json(&self) -> Value {
        self.0.iter().map(room_json).collect()
    }
}

/// A room as JSON.
pub(crate) fn room_json(room: &v1::Room) -> Value {
    let member = |one: &v1::RoomMember| {
        json!({
            "member": one.member,
            "uid": one.uid,
            "joined": one.joined,
            "until": (one.until != 0).then_some(one.until),
        })
    };
    json!({
        "room": room.name,
        "path": format!("/rooms/{}", room.name),
        "uid": room.uid,
        "gid": room.gid,
        "mode": format!("{:o}", room.mode & 0o777),
        "quota_bytes": (room.quota_bytes != 0).then_some(room.quota_bytes),
        "used_bytes": room.used_bytes,
        "files": room.files,
        "created": room.created,
        "expires": (room.expires != 0).then_some(room.expires),
        "members": room.members.iter().map(member).collect::<Vec<_>>(),
    })
}
