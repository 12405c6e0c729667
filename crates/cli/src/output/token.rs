//! Tokens of users and hosts.

use super::table::{columns, listing};
use super::{dash, given, records};
use crate::format::Time;
use tidemill_client::users;
use tidemill_wire::v1;

listing! {
    /// List of tokens.
    Tokens of Token
}

records! {
    /// Token, without its secret.
    Token from of: v1::AccessToken {
        token: u64,
        /// User of the token; null for a token of a daemon, which acts for all users.
        uid: Option<u32>,
        read_only: bool, created: Time,
        /// End; null for a token without an end.
        expires: Option<Time> = given(&of.expires),
        /// Time of the last use; null if the token was never used.
        used: Option<Time> = given(&of.used),
        note: String,
    }
}

columns! { token: Token {
    right "TOKEN" => token.token,
    left "USER" => token.user(),
    left "MAY" => if token.read_only { "read" } else { "all" },
    left "CREATED (UTC)" => token.created,
    left "EXPIRES" => dash(&token.expires),
    left "LAST USED" => dash(&token.used),
    left "NOTE" => token.note,
} }

impl Token {
    /// Returns the user of the token's bearer.
    pub(crate) fn user(&self) -> String {
        self.uid.map_or_else(|| "anybody".into(), users::name)
    }
}
