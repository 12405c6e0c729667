//! Messages: the look at the encoding of a request agrees with its decoder, and frames end where they say.
#![no_main]

use libfuzzer_sys::fuzz_target;
use prost::Message;
use tidemill_wire::v1::{self, NameRequest};
use tidemill_wire::{bounded, local};

fuzz_target!(|bytes: &[u8]| {
    let (kind, bytes) = bytes.split_first().unwrap_or((&0, &[]));
    match kind % 4 {
        0 => {
            let checked = bounded::check(bytes);
            if let Ok(request) = NameRequest::decode(bytes) {
                assert!(checked.is_err() || request.ops.len() <= bounded::OPS_MAX);
            }
        }
        1 => {
            let mut peer = bytes;
            while let Ok(Some(frame)) = local::receive_at_most(&mut peer, 1 << 16) {
                assert!(frame.len() <= 1 << 16);
                let _ = (local::request(&frame), local::reply(&frame), local::greeted(&frame));
            }
        }
        2 => {
            let _ = v1::FromElement::decode(bytes);
            let _ = v1::SubmitRequest::decode(bytes);
            let _ = v1::LineageRequest::decode(bytes);
        }
        _ => {
            let _ = v1::ToElement::decode(bytes);
            if let Ok(label) = v1::Label::decode(bytes) {
                let _ = tidemill_core::label::Label::try_from(&label);
            }
        }
    }
});
