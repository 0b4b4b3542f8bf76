/** A client of Holdfast's bridge for browsers and Node.js. */

export type Status = "disconnected" | "connecting" | "connected" | "reconnecting" | "error";
export type Role = "controller" | "observer";
/** What a client without a position gets: what is held, all, what waits for an answer, or only what is new. */
export type History = "tail" | "full" | "pending" | "none";

/** A failure as a value: a code of Holdfast's catalog, a sentence, and facts. */
export interface Fault {
  code: string;
  message: string;
  context: Record<string, unknown>;
  retryable?: boolean;
  /** Seconds. */
  retryAfter?: number;
}

/** The error that this module throws and rejects with. */
export class HoldfastError extends Error {
  constructor(fault: Fault);
  readonly fault: Fault;
  readonly code: string;
}

/** A place in a session's log. */
export interface Position {
  epoch: string;
  offset: number;
  id?: string;
}

/** When a client connects again. All times are seconds. */
export interface Schedule {
  /** Before each attempt. The last one repeats. */
  delays: number[];
  /** Each delay is spread over this share of it, to both sides. */
  jitter: number;
  /** Attempts before it gives up; null: until `grace` has passed. */
  attempts: number | null;
  grace: number | null;
  factor: number;
  cap: number;
  waitsFirst: boolean;
  message: string;
}

export const SCHEDULES: Readonly<Record<"default" | "bridge" | "linear", Schedule>>;

/** A random id of a message or a client. */
export function newId(): string;

export interface OutboxLimits {
  maxCount?: number;
  maxBytes?: number;
  /** How many messages may be sent and not acknowledged at the same time. */
  window?: number;
}

/** What the client needs of a WebSocket. */
export interface WebSocketLike {
  readyState: number;
  onopen: ((event: any) => any) | null;
  onmessage: ((event: any) => any) | null;
  onerror: ((event: any) => any) | null;
  onclose: ((event: any) => any) | null;
  send(frame: string): void;
  close(code?: number, reason?: string): void;
}

/** What the client needs of `localStorage`. */
export interface StorageLike {
  readonly length: number;
  key(place: number): string | null;
  getItem(key: string): string | null;
  setItem(key: string, value: string): void;
  removeItem(key: string): void;
}

/** What a client shows to the server: a token, or a ticket that stands for one once. */
export type Credential = string | { ticket: string };

export interface ClientOptions {
  /**
   * The token, or a function that returns one, or a ticket of `POST /tickets` in place of it. It is called before each connection. If it throws
   * a `HoldfastError` whose fault has `retryable: false`, the client gives up.
   */
  token: string | ((about: { isExpired: boolean }) => Credential | Promise<Credential>);
  /** The same for all connections of one client. Give a kept one together with `storage`. */
  clientId?: string;
  clientVersion?: string;
  platform?: string;
  /** Where messages are kept until the server has them, such as `localStorage`. Without it they are kept in memory. */
  storage?: StorageLike;
  outbox?: OutboxLimits;
  schedule?: "default" | "bridge" | "linear" | Partial<Schedule>;
  /** Seconds that an attempt to connect may take; 10 unless given. */
  connectTimeout?: number;
  /** Seconds that the server may take to acknowledge a message, until the client connects again and sends it again; 30 unless given. */
  answerTimeout?: number;
  /** Messages that wait for a slow application, until no more are taken from the server; 1,000 unless given. */
  maxWaiting?: number;
  /** Whether its user accepts a bridge that is reached over the public internet without a tunnel. */
  acceptPublic?: boolean;
  /** For platforms without one of their own. */
  WebSocket?: new (url: string) => WebSocketLike;
  /** false: do not connect before `connect` is called. */
  connect?: boolean;
  newId?: () => string;
  random?: () => number;
  clock?: { monotonic(): number; wall(): number };
}

export interface SessionSummary {
  session_id: string;
  status?: string;
  agent?: string;
  title?: string;
  working_directory?: string;
  /** What its agent does. Only of sessions that the server has in use. */
  turn?: "running" | "idle" | "requires_action";
  /** How many questions and approvals wait for a person in it. */
  questions?: number;
  /** When something was last stored in it. */
  last_at?: string;
  /** The names of the texts above that are longer than what stands there. */
  cut?: string[];
}

export interface ConnectionAck {
  connection_id: string;
  protocol: number;
  server_version: string;
  server_time: string;
  heartbeat_interval_ms: number;
  limits: { max_frame: number; max_inflight: number; replay_bytes: number; replay_age_ms: number; grace_ms: number };
  connection_mode?: "local_only" | "private_network" | "secure_remote" | "direct_public" | "misconfigured";
  active_sessions?: SessionSummary[];
}

export interface PendingMessage {
  id: string;
  session_id: string;
  type: string;
  payload: Record<string, unknown>;
  expires_at: number | null;
  /** Why it is held and not sent: the server does not take it. `discard(id)` takes it out. */
  fault: Fault | null;
}

export interface JoinOptions {
  role?: Role;
  /** Go on after this position. */
  after?: Position | null;
  history?: History;
  /** Make the session if it does not exist. */
  create?: boolean | { agent?: string; title?: string; working_directory?: string } | null;
}

/** A connection to a bridge that comes back by itself. */
export class Client extends EventTarget {
  constructor(url: string | URL, options: ClientOptions);
  readonly url: string;
  readonly status: Status;
  /** Why it is not connected. */
  readonly fault: Fault | null;
  readonly clientId: string;
  /** What is not acknowledged yet, in the order of sending. */
  readonly pending: PendingMessage[];
  /** The last attempt to connect again that was planned. `at` is the wall clock in seconds. */
  readonly nextAttempt?: { attempt: number; at: number };
  set token(token: ClientOptions["token"]);
  connect(): void;
  /** End, and do not connect again. What is not acknowledged stays in the outbox. */
  close(): void;
  /** Find out at once whether the connection still works, or connect now. In browsers this happens by itself. */
  wake(): void;
  join(session: string, options?: JoinOptions): Session;
  /** The sessions that this client may see. */
  sessions(): Promise<SessionSummary[]>;
  /** Those that the server has in use: what each does (`turn`), and how many `questions` wait in it. */
  sessionsInUse(): Promise<SessionSummary[]>;
  /** Send a message that is not kept, and return its answer. Rejects if none comes within `answerTimeout`. */
  request(type: string, payload: Record<string, unknown>): Promise<Message>;
  /** Take a message out of the outbox. One that was sent may be stored already. */
  discard(id: string): boolean;
  /** `detail` is the acknowledgement (online), the fault (failed) or the message (message). */
  addEventListener(
    type: "status" | "attempt" | "outbox" | "online" | "failed" | "message",
    listener: ((event: Event & { detail: any }) => void) | null,
    options?: boolean | AddEventListenerOptions,
  ): void;
  addEventListener(type: string, listener: EventListenerOrEventListenerObject | null, options?: boolean | AddEventListenerOptions): void;
}

export interface SendOptions {
  /** Seconds after which it is not sent any more. */
  expires?: number | null;
  /** A secret is kept in memory only, even with `storage`. */
  isSecret?: boolean;
  /** Is called with the message's id once it is in the outbox. */
  onQueued?: (id: string) => void;
}

/** A session that the client has joined. Iterate over it for its messages. */
export class Session implements AsyncIterableIterator<Message> {
  private constructor();
  readonly id: string;
  /** The position of the last message that the application has finished with. Keep it, and give it to `join` as `after`. */
  readonly position: Position | null;
  /** Resolves with the message's offset once it is stored. */
  send(text: string, options?: SendOptions): Promise<number | null>;
  answer(
    questionId: string,
    value: unknown,
    options?: SendOptions & { outcome?: "accepted" | "rejected" | "dismissed"; reason?: string },
  ): Promise<number | null>;
  approve(call: string | ApprovalRequired, isApproved: boolean, options?: SendOptions & { reason?: string }): Promise<number | null>;
  command(run: string, command: "retry_now" | "fall_back" | "cancel"): Promise<number | null>;
  stop(): Promise<number | null>;
  /** Give the session another title, for everybody. Its id stays. */
  rename(title: string): Promise<number | null>;
  /** Close the session for good, and stop what its agent does. Its log stays. */
  close(): Promise<number | null>;
  /** After a gap: ask for a snapshot. It arrives as a message, and the session goes on from it. */
  reload(): void;
  leave(): void;
  next(): Promise<IteratorResult<Message>>;
  return(): Promise<IteratorResult<Message>>;
  [Symbol.asyncIterator](): this;
}

interface Envelope<Type extends string, Payload> {
  type: Type;
  payload: Payload;
  session_id: string;
  id?: string;
  timestamp?: string;
  epoch?: string;
  /** 1, 2, 3 … in the session's log; 0 or absent: not a part of it. */
  offset?: number;
  re?: string;
}

export interface Gap {
  reason: "evicted" | "expired" | "ahead" | "epoch" | "diverged" | "reset";
  requested: number;
  oldest_offset: number;
  top_offset: number;
}

export interface Question {
  question_id: string;
  arguments_hash?: string;
  kind: "Ask" | "Approve" | "Select" | "Confirm" | "Auth.DeviceCode" | "Auth.Password";
  prompt: string;
  choices?: string[];
  url?: string;
  user_code?: string;
  expires_at?: string | null;
}

export interface ApprovalRequired {
  tool_call_id: string;
  tool: string;
  params: Record<string, unknown>;
  /** `params` as a text, if they hold a number that JavaScript rounds: show this, and decide by it. */
  arguments?: string;
  description?: string;
  question_id?: string;
  /** Identifies exactly what is asked. `approve` sends it along, so that the answer counts for nothing else. */
  arguments_hash?: string;
  /** Whether `params` are not whole. */
  cut?: boolean;
  risk_level?: "low" | "medium" | "high" | "critical";
  expires_at?: string | null;
}

/** What iterating over a session yields. */
export type Message =
  | Envelope<"joined", { state: string; role: Role; epoch: string; oldest_offset: number; top_offset: number; from_offset: number; clients: number }>
  | Envelope<"gap", Gap>
  | Envelope<"snapshot", { session_id: string; epoch: string; offset: number; state: unknown }>
  | Envelope<
      "session_state",
      {
        session_id: string;
        at_offset: number;
        state: string;
        turn: "running" | "idle" | "requires_action";
        turn_number?: number | null;
        in_flight?: boolean;
        stop_reason?: string;
        pending_approvals?: ApprovalRequired[];
        pending_questions?: Question[];
      }
    >
  | Envelope<"presence", { session_id: string; clients: number }>
  | Envelope<"user_message", { content: string; client_id?: string; message_id?: string }>
  | Envelope<"stream_start", { stream_id: string; turn?: number; model?: string }>
  | Envelope<"stream_chunk", { stream_id: string; text: string }>
  | Envelope<"stream_end", { stream_id: string; finish_reason?: "stop" | "tool_call" | "length" | "error"; usd?: number | null }>
  | Envelope<"tool_call", { tool_call_id: string; tool: string; params: Record<string, unknown>; description?: string }>
  | Envelope<"tool_result", { tool_call_id: string; tool: string; success: boolean; content?: string; cut?: number; duration_ms?: number | null }>
  | Envelope<"tool_error", { tool_call_id: string; tool: string; code: string; message: string; retryable: boolean }>
  | Envelope<"approval_required", ApprovalRequired>
  | Envelope<"approval_resolved", { tool_call_id: string; decision: string; by?: string }>
  | Envelope<"question", Question>
  | Envelope<"question_closed", { question_id: string; outcome: string; by?: string }>
  | Envelope<"recovery", { event: Record<string, unknown>; line: string; reason?: string; until?: string; run?: string; can?: ("retry_now" | "fall_back" | "cancel")[] }>
  | Envelope<"claude_event", { event: string; data?: Record<string, unknown>; event_id?: string }>
  | Envelope<"notification", { notification_id: string; notification_type: string; title: string; body?: string }>
  | Envelope<"session_event", { event: string; [name: string]: unknown }>
  | Envelope<"sessions", { sessions: SessionSummary[] }>;
