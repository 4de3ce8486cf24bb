//! One connection, frame by frame.

use super::{PAGE_BYTES, PATIENCE};
use orbitkv_shm::{Mapping, recv_with_fds};
use orbitkv_wire::{FrameReader, Hello, HelloGroup, HelloRole, Kind, Slot, ToClient, ToManager, write_frame};
use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

/// A frame that came, payload included.
#[derive(Clone, Debug)]
pub struct Message {
    pub kind: Kind,
    pub session: u64,
    pub operation: u64,
    pub revision: u32,
    payload: Vec<u8>,
}

impl Message {
    pub fn body(&self) -> ToClient<'_> {
        ToClient::decode(self.kind, &self.payload).unwrap()
    }

    /// Text of a refusal or rejection.
    pub fn text(&self) -> &str {
        match self.body() {
            ToClient::Refused { text } | ToClient::Rejected { text } => text,
            other => panic!("{other:?} has no text"),
        }
    }
}

/// A mapped segment.
struct Segment {
    map: Mapping,
    slot_bytes: u64,
}

/// A connection, and a session after [`Client::greet`].
pub struct Client {
    pub stream: UnixStream,
    pub session: u64,
    pub epoch: u32,
    reader: FrameReader,
    queue: VecDeque<Message>,
    fds: VecDeque<OwnedFd>,
    segments: BTreeMap<u32, Segment>,
}

/// A solo engine with one group of pages of [`PAGE_BYTES`].
pub fn hello(client: u128, instance: u128, epoch: u32) -> Hello {
    let group = HelloGroup {
        group: 0,
        page_bytes: PAGE_BYTES as u64,
        block_tokens: 16,
        shard_count: 1,
        rule: "prefix".into(),
    };
    Hello {
        engine: "test".into(),
        engine_version: "1".into(),
        model: "tiny".into(),
        role: HelloRole::Solo,
        rank: 0,
        world_size: 1,
        client: format!("{client:032x}"),
        epoch,
        instance: format!("{instance:032x}"),
        namespace: "ab".repeat(32),
        groups: vec![group],
        hash_tokens: 0,
        verify_restore: None,
        resume: None,
    }
}

impl Client {
    pub fn connect(socket: &Path) -> Self {
        let stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self {
            stream,
            session: 0,
            epoch: 0,
            reader: FrameReader::default(),
            queue: VecDeque::new(),
            fds: VecDeque::new(),
            segments: BTreeMap::new(),
        }
    }

    /// Says hello and takes the answer: a welcome, or the text of the rejection.
    pub fn greet(&mut self, hello: &Hello) -> Result<u128, String> {
        self.epoch = hello.epoch;
        let json = hello.encode().unwrap();
        self.send(&ToManager::Hello(&json), 0, 0);
        let answer = self.next().expect("an answer to the hello");
        match answer.body() {
            ToClient::Welcome { boot } => {
                self.session = answer.session;
                Ok(boot)
            }
            ToClient::Rejected { text } => Err(text.to_owned()),
            other => panic!("{other:?} as answer to a hello"),
        }
    }

    pub fn frame(&self, message: &ToManager<'_>, operation: u64, revision: u32) -> Vec<u8> {
        let (mut payload, mut bytes) = (Vec::new(), Vec::new());
        message.encode(&mut payload);
        let ids = (self.session, self.epoch, operation, revision);
        write_frame(&mut bytes, message.kind(), ids, &payload).unwrap();
        bytes
    }

    pub fn send(&mut self, message: &ToManager<'_>, operation: u64, revision: u32) {
        let bytes = self.frame(message, operation, revision);
        self.stream.write_all(&bytes).unwrap();
    }

    /// The next frame, or `None` at the end of the connection.
    pub fn next(&mut self) -> Option<Message> {
        loop {
            if let Some(message) = self.queue.pop_front() {
                return Some(message);
            }
            if !self.read() {
                return None;
            }
        }
    }

    /// The next frame of that kind; others are skipped.
    pub fn expect(&mut self, kind: Kind) -> Message {
        loop {
            let message = self.next().unwrap_or_else(|| panic!("connection ended before {kind:?}"));
            if message.kind == kind {
                return message;
            }
        }
    }

    /// Whether the manager closes the connection; frames before that are skipped.
    pub fn ends(&mut self) -> bool {
        while self.next().is_some() {}
        true
    }

    pub fn segments(&self) -> usize {
        self.segments.len()
    }

    fn read(&mut self) -> bool {
        let mut buffer = vec![0; 64 << 10];
        let mut fds = Vec::new();
        let count = match recv_with_fds(self.stream.as_fd(), &mut buffer, &mut fds, 8) {
            Ok(count) => count,
            Err(e) if e.kind() == io::ErrorKind::ConnectionReset => 0,
            Err(e) => panic!("waited in vain for a frame: {e}"),
        };
        self.fds.extend(fds);
        self.reader.push(&buffer[..count]);
        while let Some((header, kind, payload)) = self.reader.next_frame().unwrap() {
            let message = Message {
                kind,
                session: header.session.get(),
                operation: header.operation.get(),
                revision: header.revision.get(),
                payload: payload.to_vec(),
            };
            match message.body() {
                ToClient::Segment { segment, slot_bytes, bytes } => {
                    let fd = self.fds.pop_front().expect("a descriptor beside its frame");
                    let map = Mapping::from_fd(fd, usize::try_from(bytes).unwrap()).unwrap();
                    self.segments.insert(segment, Segment { map, slot_bytes });
                }
                ToClient::SegmentGone { segment } => drop(self.segments.remove(&segment)),
                _ => {}
            }
            self.queue.push_back(message);
        }
        count > 0
    }

    pub fn write_page(&self, slot: &Slot, bytes: &[u8]) {
        let (segment, offset) = self.locate(slot);
        segment.map.write_at(offset, bytes).unwrap();
    }

    pub fn read_page(&self, slot: &Slot) -> Vec<u8> {
        let (segment, offset) = self.locate(slot);
        let mut bytes = vec![0; PAGE_BYTES];
        segment.map.read_at(offset, &mut bytes).unwrap();
        bytes
    }

    fn locate(&self, slot: &Slot) -> (&Segment, usize) {
        let segment = &self.segments[&slot.segment.get()];
        let start = u64::from(slot.index.get()) * segment.slot_bytes + orbitkv_wire::SLOT_HEADER_BYTES;
        (segment, usize::try_from(start).unwrap())
    }
}
