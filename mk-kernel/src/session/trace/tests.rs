//! Rings and slices, from events as a GPU writes them.

use super::*;
use mk_core::{OpId, Stream, StreamTasks, Task};
use serde_json::Value;

/// An event as it lies in a ring: 40 bytes.
fn written(start_ns: u64, end_ns: u64, epoch: u64, task: u32) -> Vec<u8> {
    let mut bytes: Vec<u8> = [start_ns, end_ns, 3, epoch].iter().flat_map(|x| x.to_le_bytes()).collect();
    bytes.extend(task.to_le_bytes());
    bytes.extend([9, 0, Role::Store as u8, 0]);
    bytes
}

#[test]
fn an_event_is_read_as_the_kernel_writes_it() {
    let [read] = oldest_first(&written(1 << 40, (1 << 40) + 7, 5, 0x0102_0304), 1)[..] else { panic!("one") };
    let expected = TraceEvent {
        start_ns: 1 << 40,
        end_ns: (1 << 40) + 7,
        waited_ns: 3,
        epoch: 5,
        task: 0x0102_0304,
        op: 9,
        role: Role::Store as u16,
    };
    assert_eq!(read, expected);
}

#[test]
fn a_ring_that_has_wrapped_begins_with_its_oldest_event() {
    let tasks = |places: &[u32], count| -> Vec<u32> {
        let bytes: Vec<u8> = places.iter().flat_map(|&t| written(0, 0, 1, t)).collect();
        oldest_first(&bytes, count).iter().map(|e| e.task).collect()
    };
    assert!(tasks(&[], 0).is_empty());
    assert_eq!(tasks(&[0, 1, 2], 3), [0, 1, 2]);
    assert_eq!(tasks(&[3, 1, 2], 4), [1, 2, 3]);
    assert_eq!(tasks(&[6, 4, 5], 7), [4, 5, 6]);
    assert_eq!(tasks(&[3, 4, 5], 6), [3, 4, 5]);
}

/// Streams of one rank, and so many tasks without labels.
fn program(lanes: u16, streams: &[(Queue, Stream, u32)]) -> Program {
    let mut next = 0;
    let mut stream = |&(queue, stream, len): &(Queue, Stream, u32)| {
        let first = next;
        next += len;
        StreamTasks { rank: Rank(0), queue, stream, first, len }
    };
    let streams: Vec<StreamTasks> = streams.iter().map(&mut stream).collect();
    let task = Task {
        op: OpId(0),
        flags: 0,
        label: 0,
        waits: Default::default(),
        posts: Default::default(),
        args: [0; mk_core::Limits::ARG_BYTES],
    };
    Program {
        name: "p".into(),
        ranks: 1,
        lanes: vec![lanes],
        regions: Vec::new(),
        signals: Vec::new(),
        handlers: vec![mk_core::HandlerId { name: "nop".into(), version: 1 }],
        labels: Vec::new(),
        streams,
        tasks: vec![task; next as usize],
    }
}

#[test]
fn a_ring_holds_the_tasks_that_one_lane_can_have_in_a_run() {
    let lane = |lane| Queue::Lane(Lane(lane));
    let of = |lanes, streams: &[_]| capacity(&program(lanes, streams), Rank(0));
    assert_eq!(of(0, &[]), 1);
    assert_eq!(of(2, &[(lane(0), Stream::Compute, 3), (lane(1), Stream::Compute, 5)]), 5);
    // A lane may claim all that its own stream leaves over.
    assert_eq!(of(2, &[(lane(0), Stream::Compute, 3), (Queue::Ticket, Stream::Compute, 7)]), 10);
    assert_eq!(of(2, &[(lane(0), Stream::Comm, 4), (Queue::Ticket, Stream::Compute, 7)]), 7);
    let room = of(132, &[(Queue::Ticket, Stream::Compute, 1_000_000)]);
    assert!((10_000..11_000).contains(&room), "{room}");
    assert!(u64::from(room) * EVENT_BYTES * 132 * u64::from(ROLES) <= RINGS_BYTES);
}

fn role_event(lane: u16, role: Role, task: u32, times_ns: [u64; 2], waited_ns: u64) -> RoleEvent {
    let [start_ns, end_ns] = times_ns;
    let task = TaskId(task);
    RoleEvent { rank: Rank(0), lane: Lane(lane), role, task, start_ns, end_ns, waited_ns }
}

/// What a GPU writes of a lane that loads its second task while it stores the first, and of a push beside it.
fn events(later_ns: u64) -> Vec<RoleEvent> {
    [
        (0, Role::Load, 0, [100, 400], 50),
        (0, Role::Load, 1, [400, 900], 300),
        (0, Role::Math, 0, [110, 600], 0),
        (0, Role::Math, 1, [600, 1100], 0),
        (0, Role::Store, 0, [120, 800], 0),
        (0, Role::Store, 1, [800, 1300], 0),
        (0, Role::Comm, 2, [105, 1400], 0),
    ]
    .map(|(lane, role, task, [from, to], waited)| {
        role_event(lane, role, task, [from + later_ns, to + later_ns], waited)
    })
    .into()
}

fn two_tasks_and_a_push() -> Program {
    let lane = Queue::Lane(Lane(0));
    program(1, &[(lane, Stream::Compute, 2), (lane, Stream::Comm, 1)])
}

#[test]
fn a_task_lasts_from_its_first_role_to_its_last() {
    let trace = slices::trace(&two_tasks_and_a_push(), 4, &[events(1 << 50)]);
    let spans: Vec<_> =
        trace.slices().iter().map(|s| (s.task.0, s.stream, s.from_ps, s.to_ps, s.wait)).collect();
    assert_eq!(
        spans,
        [
            (0, Stream::Compute, 0, 700_000, false),
            (1, Stream::Compute, 300_000, 1_200_000, false),
            (2, Stream::Comm, 5_000, 1_300_000, false),
            (0, Stream::Compute, 0, 50_000, true),
            (1, Stream::Compute, 300_000, 600_000, true),
        ]
    );
}

/// GPUs have no clock in common, so each begins at 0.
#[test]
fn each_gpu_has_a_time_of_its_own() {
    let mut other = events(77);
    other.truncate(1);
    let trace = slices::trace(&two_tasks_and_a_push(), 1, &[events(1 << 50), Vec::new(), other]);
    let last = trace.slices().iter().rfind(|s| !s.wait).unwrap();
    assert_eq!((last.from_ps, last.to_ps), (0, 300_000));
}

/// The wait of the second task lay behind the first one: none of it was exposed.
#[test]
fn it_is_shown_as_the_simulators() {
    let mut bytes = Vec::new();
    slices::trace(&two_tasks_and_a_push(), 4, &[events(0)]).to_json(&mut bytes).unwrap();
    let json: Value = serde_json::from_slice(&bytes).unwrap();
    let shown: Vec<_> = json["traceEvents"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|e| e["ph"] == "X")
        .map(|e| {
            (e["tid"].as_u64(), e["name"].as_str().unwrap(), e["ts"].as_f64().unwrap(), e["dur"].as_f64())
        })
        .collect();
    assert_eq!(
        shown,
        [
            (Some(0), "nop", 0.0, Some(0.7)),
            (Some(0), "wait: nop", 0.0, Some(0.05)),
            (Some(0), "nop", 0.7, Some(0.5)),
            (Some(1), "nop", 0.005, Some(1.295)),
        ]
    );
}

/// A wait that is said to be longer than its task is cut, and a run without events is an empty trace.
#[test]
fn what_a_gpu_would_not_write_does_no_harm() {
    let event = role_event(0, Role::Load, 0, [10, 20], u64::MAX);
    let trace = slices::trace(&two_tasks_and_a_push(), 1, &[vec![event]]);
    assert!(trace.slices().iter().all(|s| (s.from_ps, s.to_ps) == (0, 10_000)));
    let odd = TraceEvent { task: 3, ..TraceEvent::default() };
    assert_eq!(RoleEvent::of(&odd, Rank(0), Lane(0), Role::Load, &[TaskId(0); 3]), None);
    assert!(slices::trace(&two_tasks_and_a_push(), 1, &[]).slices().is_empty());
}
