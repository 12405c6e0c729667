//! Tokens of users and hosts.

use super::{View, table, write_table};
use crate::format;
use serde_json::{Value, json};
use std::io::{self, Write};
use tidemill_client::users;
use tidemill_core::display::line;
use tidemill_wire::v1;

/// Output of `tidemill token list`.
#[derive(Debug)]
pub(crate) struct TokensView(pub(crate) Vec<v1::AccessToken>);

impl View for TokensView {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let header = [
            "TOKEN",
            "USER",
            "MAY",
            "CREATED (UTC)",
            "EXPIRES",
            "LAST USED",
            "NOTE",
        ];
        let mut rows = table(&header, &[0]);
        for token in &self.0 {
            rows.add_row([
                token.token.to_string(),
                whose(token),
                if token.read_only { "read" } else { "all" }.into(),
                format::time(token.created),
                format::time(token.expires),
                format::time(token.used),
                line(&token.note),
            ]);
        }
        write_table(out, &rows)
    }

    fn json(&self) -> Value {
        self.0.iter().map(token_json).collect()
    }
}

/// Returns the user of the token's bearer.
pub(crate) fn whose(token: &v1::AccessToken) -> String {
    token.uid.map_or_else(|| "anybody".into(), users::name)
}

/// Returns a token as JSON.
pub(crate) fn token_json(token: &v1::AccessToken) -> Value {
    json!({
        "token": token.token,
        "uid": token.uid,
        "read_only": token.read_only,
        "created": token.created,
        "expires": (token.expires != 0).then_some(token.expires),
        "used": (token.used != 0).then_some(token.used),
        "note": token.note,
    })
}
