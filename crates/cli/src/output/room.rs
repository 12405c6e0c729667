//! Rooms and their channels.

use super::{View, table, write_table};
use crate::format;
use serde_json::{Value, json};
use std::io::{self, Write};
use tidemill_client::users;
use tidemill_core::shown::line;
use tidemill_wire::route::ChannelState;
use tidemill_wire::v1;

/// Output of `tidemill room list`.
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

/// Output of `tidemill channel list`: channels, and their states if their nodes report them.
#[derive(Debug)]
pub(crate) struct ChannelsView(pub(crate) Vec<(v1::Channel, Option<ChannelState>)>);

impl View for ChannelsView {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let header = [
            "CHANNEL", "OWNER", "NODE", "CAPACITY", "HELD", "FIRST", "NEXT", "READERS",
        ];
        let mut rows = table(&header, &[3, 4, 5, 6]);
        for (channel, state) in &self.0 {
            let medium = if channel.memory { " (memory)" } else { "" };
            let said = |say: fn(&ChannelState) -> String| match state {
                Some(state) => say(state),
                None => "-".into(),
            };
            rows.add_row([
                line(&channel.channel),
                users::name(channel.uid),
                match channel.lost {
                    true => "lost".into(),
                    false => format!("{}{medium}", channel.node),
                },
                format::bytes(channel.capacity_bytes),
                said(|state| format::bytes(state.held_bytes)),
                said(|state| state.first.to_string()),
                said(|state| state.next.to_string()),
                said(|state| {
                    let readers = state.readers.iter();
                    let readers = readers.map(|(name, next)| format!("{name} at {next}"));
                    readers.collect::<Vec<_>>().join(", ")
                }),
            ]);
        }
        write_table(out, &rows)
    }

    fn json(&self) -> Value {
        let json = |(channel, state): &(_, Option<ChannelState>)| {
            let mut json = channel_json(channel);
            json["state"] = serde_json::to_value(state).unwrap_or_default();
            json
        };
        self.0.iter().map(json).collect()
    }
}

/// Returns a channel as JSON.
pub(crate) fn channel_json(channel: &v1::Channel) -> Value {
    json!({
        "room": channel.room,
        "channel": channel.channel,
        "uid": channel.uid,
        "node": channel.node,
        "memory": channel.memory,
        "lost": channel.lost,
        "capacity_bytes": channel.capacity_bytes,
        "created": channel.created,
    })
}

/// Returns a room as JSON.
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
