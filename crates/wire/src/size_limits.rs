//! Limits on the size of a request, checked on its bytes before it is decoded.
//!
//! A decoded operation takes some hundred bytes, and two encoded bytes are enough for an operation. Without this check, a decoded message
//! of a permitted length would take a hundred times its length. So the fields of each request are counted first. Only daemons of the
//! cluster send answers, the streams of nodes and mounts, and longer requests than users; these are not checked.

use crate::USER_MESSAGE_BYTES_MAX;
use crate::descriptors::{self, Field, FieldKind};
use crate::v1::NameRequest;
use prost::Message;
use std::any::TypeId;
use std::marker::PhantomData;
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder};
use tonic_prost::{ProstCodec, ProstDecoder, ProstEncoder};

/// Maximum number of operations in one request.
pub const OPS_MAX: usize = 10_000;

/// Maximum weight of the fields of one request: fields and packed numbers count as one, messages as `MESSAGE`. A request to the namespace
/// may have a larger weight, as many operations have.
pub const ELEMENTS_MAX: u64 = 200_000;
const NAME_ELEMENTS_MAX: u64 = 1_000_000;
const MESSAGE: u64 = 4;
/// Maximum depth of nested messages.
const DEPTH_MAX: u32 = 16;

/// Maximum size in bytes of encoded [`Credentials`](crate::v1::Credentials): as many groups as Linux allows a user, and some more.
const CREDENTIALS_BYTES_MAX: usize = 512 << 10;

/// Maximum number of fields of a request in addition to its operations.
const OTHER_FIELDS_MAX: usize = 16;

const CREDENTIALS: u64 = 1;
const OPS: u64 = 2;

/// Reason why a request is not decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SizeLimitError {
    /// The request has too many operations.
    #[error("a request has more than {OPS_MAX} operations: send several requests")]
    Operations,
    /// The request's credentials have too many groups, or invalid bytes.
    #[error("the credentials of a request are too long")]
    Credentials,
    /// The request has too many other fields.
    #[error("a request has too many fields: send several requests")]
    Elements,
    /// The bytes are not an encoded message.
    #[error("a message is not a request")]
    Nonsense,
}

/// Checks the encoding of a [`NameRequest`].
///
/// # Errors
/// The message is too large, or is malformed.
pub fn check(bytes: &[u8]) -> Result<(), SizeLimitError> {
    check_operations(bytes)?;
    let fields = descriptors::fields("NameRequest").unwrap_or_default();
    weigh(bytes, fields, NAME_ELEMENTS_MAX)
}

/// Checks the weight of an encoded request with these fields. The decoder rejects invalid bytes later.
///
/// # Errors
/// The weight of the request exceeds `max`.
fn weigh(bytes: &[u8], fields: &[Field], max: u64) -> Result<(), SizeLimitError> {
    if bytes.len() > USER_MESSAGE_BYTES_MAX {
        return Ok(());
    }
    let mut left = max;
    match count(bytes, fields, 0, &mut left) {
        Err(SizeLimitError::Nonsense) => Ok(()),
        counted => counted,
    }
}

fn count(
    mut bytes: &[u8],
    fields: &[Field],
    depth: u32,
    left: &mut u64,
) -> Result<(), SizeLimitError> {
    if depth > DEPTH_MAX {
        return Err(SizeLimitError::Elements);
    }
    while !bytes.is_empty() {
        let key = varint(&mut bytes)?;
        let (number, delimited) = (key >> 3, key & 7 == 2);
        let length = match key & 7 {
            0 => varint(&mut bytes).map(|_| 0)?,
            1 => 8,
            2 => usize::try_from(varint(&mut bytes)?).map_err(|_| SizeLimitError::Nonsense)?,
            3 | 4 => 0,
            5 => 4,
            _ => return Err(SizeLimitError::Nonsense),
        };
        let (inner, rest) = bytes
            .split_at_checked(length)
            .ok_or(SizeLimitError::Nonsense)?;
        bytes = rest;
        let field = fields
            .iter()
            .find(|field| u64::from(field.number) == number);
        let cost = match field.map(|field| field.kind) {
            Some(FieldKind::Message(of)) if delimited => {
                count(inner, descriptors::fields_at(of), depth + 1, left)?;
                MESSAGE
            }
            Some(FieldKind::Numbers) if delimited => {
                inner.iter().map(|byte| u64::from(*byte < 0x80)).sum()
            }
            _ => 1,
        };
        *left = left.checked_sub(cost).ok_or(SizeLimitError::Elements)?;
    }
    Ok(())
}

fn check_operations(mut bytes: &[u8]) -> Result<(), SizeLimitError> {
    let (mut ops, mut others) = (0, 0);
    while !bytes.is_empty() {
        let key = varint(&mut bytes)?;
        let length = match key & 7 {
            0 => varint(&mut bytes).map(|_| 0)?,
            1 => 8,
            2 => usize::try_from(varint(&mut bytes)?).map_err(|_| SizeLimitError::Nonsense)?,
            5 => 4,
            _ => return Err(SizeLimitError::Nonsense),
        };
        bytes = bytes.get(length..).ok_or(SizeLimitError::Nonsense)?;
        match key >> 3 {
            OPS => ops += 1,
            CREDENTIALS if length > CREDENTIALS_BYTES_MAX => {
                return Err(SizeLimitError::Credentials);
            }
            _ => others += 1,
        }
        if ops > OPS_MAX {
            return Err(SizeLimitError::Operations);
        }
        if others > OTHER_FIELDS_MAX {
            return Err(SizeLimitError::Nonsense);
        }
    }
    Ok(())
}

/// Reads an encoded number: seven bits in each byte, the lowest bits first, ten bytes at most.
fn varint(bytes: &mut &[u8]) -> Result<u64, SizeLimitError> {
    let mut value = 0;
    for shift in (0..70).step_by(7) {
        let (&first, rest) = bytes.split_first().ok_or(SizeLimitError::Nonsense)?;
        *bytes = rest;
        value |= u64::from(first & 0x7f).checked_shl(shift).unwrap_or(0);
        if first < 0x80 {
            return Ok(value);
        }
    }
    Err(SizeLimitError::Nonsense)
}

/// The protobuf codec of all services, which checks a request before it decodes it.
#[derive(Clone, Debug)]
pub struct LimitedCodec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for LimitedCodec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> Codec for LimitedCodec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = BoundedDecoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstCodec::<T, U>::default().encoder()
    }

    fn decoder(&mut self) -> Self::Decoder {
        BoundedDecoder(ProstCodec::<T, U>::default().decoder(), request::<U>())
    }
}

/// Decoder of the codec [`LimitedCodec`].
#[derive(Clone, Debug)]
pub struct BoundedDecoder<U>(ProstDecoder<U>, Option<&'static [Field]>);

/// Returns the fields of a message that is the request of a call; `None` for a message of a stream of requests.
fn request<U: 'static>() -> Option<&'static [Field]> {
    let name = std::any::type_name::<U>().rsplit("::").next()?;
    let mut calls = descriptors::methods().iter();
    let is_one = calls.any(|call| call.request == name && !call.streams);
    is_one.then(|| descriptors::fields(name)).flatten()
}

impl<U: Message + Default + 'static> Decoder for BoundedDecoder<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        use prost::bytes::Buf;
        // A message arrives in one piece.
        let bytes = buffer.chunk();
        let checked = if TypeId::of::<U>() == TypeId::of::<NameRequest>() {
            check(bytes)
        } else {
            self.1
                .map_or(Ok(()), |fields| weigh(bytes, fields, ELEMENTS_MAX))
        };
        checked.map_err(|excess| Status::invalid_argument(excess.to_string()))?;
        self.0.decode(buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v1::{Credentials, NameOp, name_op::Op};
    use proptest::prelude::*;

    fn request(ops: usize, groups: usize) -> Vec<u8> {
        let op = NameOp {
            op: Some(Op::StatFs(crate::v1::StatFs {})),
        };
        let request = NameRequest {
            credentials: Some(Credentials {
                groups: vec![u32::MAX; groups],
                ..Credentials::default()
            }),
            ops: vec![op; ops],
            session: u64::MAX,
            durable: true,
        };
        request.encode_to_vec()
    }

    #[test]
    fn size_limits_accept_request_with_largest_counts() {
        assert_eq!(check(&request(OPS_MAX, 65_536)), Ok(()));
        assert_eq!(check(&[]), Ok(()));
    }

    #[test]
    fn size_limits_refuse_excess_counts_before_decoding() {
        assert_eq!(
            check(&request(OPS_MAX + 1, 1)),
            Err(SizeLimitError::Operations)
        );
        assert_eq!(
            check(&request(1, 200_000)),
            Err(SizeLimitError::Credentials)
        );
        // The message that took a hundred times its length: empty operations of two bytes each.
        assert_eq!(
            check(&b"\x12\x00".repeat(1 << 20)),
            Err(SizeLimitError::Operations)
        );
        // The decoder merges repeated credentials.
        assert_eq!(
            check(&b"\x0a\x00".repeat(1 << 20)),
            Err(SizeLimitError::Nonsense)
        );
    }

    #[test]
    fn size_limits_refuse_malformed_requests() {
        for bytes in [
            &b"\xff"[..],
            b"\x12\xff\xff\xff\xff\x0f",
            b"\x13\x00",
            b"\x12\x05ab",
        ] {
            assert_eq!(check(bytes), Err(SizeLimitError::Nonsense), "{bytes:?}");
        }
        assert_eq!(check(&[0xff; 30]), Err(SizeLimitError::Nonsense));
    }

    fn check_as<U: 'static>(bytes: &[u8]) -> Result<(), SizeLimitError> {
        weigh(bytes, super::request::<U>().unwrap(), ELEMENTS_MAX)
    }

    #[test]
    fn size_limits_apply_to_repeated_fields_of_all_requests() {
        use crate::v1::{DeleteJobsRequest, FromNode, LineageReply, LineageRequest, LineageSearch};
        let annotations = |count| {
            let request = LineageRequest {
                search: Some(LineageSearch {
                    annotations: vec![crate::v1::AnnotationSearch::default(); count],
                    ..LineageSearch::default()
                }),
                ..LineageRequest::default()
            };
            request.encode_to_vec()
        };
        assert_eq!(check_as::<LineageRequest>(&annotations(10_000)), Ok(()));
        let many = annotations(1 << 20);
        assert_eq!(
            check_as::<LineageRequest>(&many),
            Err(SizeLimitError::Elements)
        );
        let jobs = |count| {
            let request = DeleteJobsRequest {
                jobs: vec![7; count],
                ..DeleteJobsRequest::default()
            };
            request.encode_to_vec()
        };
        assert_eq!(check_as::<DeleteJobsRequest>(&jobs(100_000)), Ok(()));
        let many = jobs(1_700_000);
        assert_eq!(
            check_as::<DeleteJobsRequest>(&many),
            Err(SizeLimitError::Elements)
        );
        // In a request to the namespace, too.
        let publish = crate::v1::Publish {
            publications: vec![crate::v1::MountPublication::default(); 1 << 20],
            ..crate::v1::Publish::default()
        };
        let request = NameRequest {
            ops: vec![NameOp {
                op: Some(Op::Publish(publish)),
            }],
            ..NameRequest::default()
        };
        assert_eq!(
            check(&request.encode_to_vec()),
            Err(SizeLimitError::Elements)
        );
        // Answers and streams are not checked.
        let replies = super::request::<LineageReply>().is_some();
        assert!(!replies && super::request::<FromNode>().is_none());
    }

    #[test]
    fn size_limits_know_request_message_of_every_call() {
        assert!(descriptors::methods().len() > 60);
        for call in descriptors::methods() {
            assert!(descriptors::fields(call.request).is_some(), "{call:?}");
        }
    }

    proptest! {
        /// A request that the decoder accepts is only refused if it is too large.
        #[test]
        fn size_limits_refuse_decodable_request_only_for_excess(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            if NameRequest::decode(bytes.as_slice()).is_ok() {
                prop_assert_ne!(check(&bytes), Err(SizeLimitError::Operations));
            } else {
                let _ = check(&bytes);
            }
        }
    }
}
