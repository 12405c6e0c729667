//! Messages: the check of an encoded request agrees with its decoder, and frames have their stated length.
#![no_main]

use libfuzzer_sys::fuzz_target;
use prost::Message;
use tidemill_wire::v1::{self, NameRequest};
use tidemill_wire::{size_limits, local};

fuzz_target!(|bytes: &[u8]| {
    let (kind, bytes) = bytes.split_first().unwrap_or((&0, &[]));
    match kind % 6 {
        0 => {
            let checked = size_limits::check(bytes);
            if let Ok(request) = NameRequest::decode(bytes) {
                assert!(checked.is_err() || request.ops.len() <= size_limits::OPS_MAX);
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
            let _ = v1::FromNode::decode(bytes);
            let _ = v1::SubmitRequest::decode(bytes);
            let _ = v1::LineageRequest::decode(bytes);
        }
        3 => {
            if let Some((request, texts)) = tidemill_preload_api::Request::decode(bytes) {
                let all: usize = texts.iter().map(|text| text.len()).sum();
                assert!(all <= bytes.len() && request.lengths.iter().sum::<u64>() == all as u64);
            }
        }
        4 => {
            if let Some((came, rest)) = tidemill_wire::replicas::decode(bytes) {
                let _ = came;
                assert!(rest.len() < bytes.len());
            }
            if let Ok(reply) = v1::LineageReply::decode(bytes) {
                let _ = tidemill_wire::lineage::graph(&reply);
            }
            if let Ok(layout) = v1::Layout::decode(bytes) {
                let _ = tidemill_wire::convert::layout(&layout, layout.unit);
            }
        }
        _ => {
            let _ = v1::ToNode::decode(bytes);
            if let Ok(label) = v1::Label::decode(bytes) {
                let _ = tidemill_model::label::Label::try_from(&label);
            }
        }
    }
});
