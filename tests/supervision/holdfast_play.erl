%% Plays crash sequences on Erlang/OTP's own supervisor and writes what happened, step by step.
%%
%% The input holds one term for each sequence: {Number, Tree, Steps}. The output has one line for each:
%%     Number;slow or ok;events of the start|events of step 1|...
%% The events of a step are followed by the state of the tree in brackets.

-module(holdfast_play).
-behaviour(gen_server).
-export([main/1, init/1, handle_call/3, handle_cast/2, terminate/2, start_worker/2, start_copy/3, start_sup/2]).

-define(AT_ONCE, 200).      % sequences that are played at the same time

main([In, Out]) ->
    logger:set_primary_config(level, none),
    {ok, Sequences} = file:consult(In),
    Lines = pool(Sequences, 0, []),
    ok = file:write_file(Out, Lines),
    halt(0).

pool([], 0, Lines) -> Lines;
pool([Next | Rest], Busy, Lines) when Busy < ?AT_ONCE ->
    Self = self(),
    spawn(fun() -> Self ! {line, line(Next)} end),
    pool(Rest, Busy + 1, Lines);
pool(Rest, Busy, Lines) ->
    receive {line, Line} -> pool(Rest, Busy - 1, [Line | Lines]) end.

line({Number, Tree, Steps}) ->
    process_flag(trap_exit, true),
    Tab = ets:new(play, [public, ordered_set]),
    ets:insert(Tab, {count, 0}),
    Root = case start_sup(Tab, Tree) of
        {ok, Pid} -> Pid;
        {error, _} -> log(Tab, "start failed"), none
    end,
    First = settled(Tab, Root),
    % Steps that took longer may have left the window, which Erlang counts in whole seconds.
    Limit = element(5, Tree) * 1000 - 500,
    {Shown, Slow} = play(Steps, Tab, Root, {now_ms(), Limit}, [First], false),
    ets:delete(Tab),
    Mark = case Slow of true -> "slow"; false -> "ok" end,
    io_lib:format("~b;~s;~s~n", [Number, Mark, lists:join("|", lists:reverse(Shown))]).

play([], _Tab, _Root, _Time, Shown, Slow) -> {Shown, Slow};
play([{sleep, Ms} | Rest], Tab, Root, {_, Limit} = Time, Shown, Slow) ->
    Late = Slow orelse is_slow(Time),
    timer:sleep(Ms),
    play(Rest, Tab, Root, {now_ms(), Limit}, Shown, Late);
play([Step | Rest], Tab, Root, Time, Shown, Slow) ->
    step(Step, Tab, Root),
    State = settled(Tab, Root),
    play(Rest, Tab, Root, Time, [State | Shown], Slow orelse is_slow(Time)).

is_slow({Began, Limit}) -> now_ms() - Began > Limit.

now_ms() -> erlang:monotonic_time(millisecond).

%% Steps

step({send, Names, What}, Tab, _Root) ->
    % The supervisors do not look until all of them have ended, so that the order is certain.
    Pids = [Pid || Name <- Names, [{_, Pid}] <- [ets:lookup(Tab, {pid, Name})], is_process_alive(Pid)],
    Sups = lists:usort([parent(Pid) || Pid <- Pids]),
    [sys:suspend(Sup) || Sup <- Sups],
    [begin
        Ref = monitor(process, Pid),
        gen_server:cast(Pid, What),
        receive {'DOWN', Ref, _, _, _} -> ok end
     end || Pid <- Pids],
    [sys:resume(Sup) || Sup <- Sups];
step({spawn, Sup, Name}, Tab, _Root) -> admin(Tab, Sup, fun(Pid) -> supervisor:start_child(Pid, [Name]) end);
step({terminate, Sup, Name}, Tab, _Root) -> admin(Tab, Sup, fun(Pid) -> supervisor:terminate_child(Pid, Name) end);
step({restart, Sup, Name}, Tab, _Root) -> admin(Tab, Sup, fun(Pid) -> supervisor:restart_child(Pid, Name) end);
step({delete, Sup, Name}, Tab, _Root) -> admin(Tab, Sup, fun(Pid) -> supervisor:delete_child(Pid, Name) end);
step(stop, _Tab, none) -> ok;
step(stop, _Tab, Root) ->
    Ref = monitor(process, Root),
    exit(Root, shutdown),
    receive {'DOWN', Ref, _, _, _} -> ok end.

admin(Tab, Sup, Call) ->
    case ets:lookup(Tab, {pid, Sup}) of
        [{_, Pid}] ->
            Answer = try Call(Pid) catch exit:_ -> dead end,
            case Answer of
                {error, Why} when Why =:= not_found; Why =:= running; Why =:= restarting -> log(Tab, atom_to_list(Why));
                {error, _} -> log(Tab, "start failed");
                _ -> ok
            end;
        [] -> ok
    end.

parent(Pid) ->
    {dictionary, Dictionary} = process_info(Pid, dictionary),
    case proplists:get_value('$ancestors', Dictionary) of
        [Parent | _] when is_pid(Parent) -> Parent
    end.

%% Waiting until all is quiet

settled(Tab, Root) ->
    settled(Tab, Root, look(Tab, Root), 0).

settled(Tab, Root, Last, Same) ->
    timer:sleep(1),
    case look(Tab, Root) of
        {_, State} = Last when Same >= 3 ->
            case lists:member($~, State) of
                true -> settled(Tab, Root, Last, 0);
                false -> events(Tab) ++ "[" ++ State ++ "]"
            end;
        Last -> settled(Tab, Root, Last, Same + 1);
        Other -> settled(Tab, Root, Other, 0)
    end.

look(Tab, Root) ->
    [{_, Count}] = ets:lookup(Tab, count),
    {Count, lists:flatten(lists:join(" ", lists:sort(state(Root))))}.

state(none) -> ["dead"];
state(Sup) ->
    try supervisor:which_children(Sup) of
        Children -> lists:append([child_state(Child) || Child <- Children])
    catch exit:_ -> ["dead"]
    end.

child_state({undefined, Pid, worker, _}) when is_pid(Pid) -> ["copy+"];
child_state({undefined, restarting, worker, _}) -> ["copy~"];
child_state({Name, undefined, _, _}) -> [atom_to_list(Name) ++ "-"];
child_state({Name, restarting, _, _}) -> [atom_to_list(Name) ++ "~"];
child_state({Name, _, worker, _}) -> [atom_to_list(Name) ++ "+"];
child_state({Name, Pid, supervisor, _}) -> [atom_to_list(Name) ++ "+" | state(Pid)].

events(Tab) ->
    Logged = ets:match(Tab, {{log, '$1'}, '$2'}),
    [ets:delete(Tab, {log, Number}) || [Number, _] <- Logged],
    lists:flatten(lists:join(",", [Event || [_, Event] <- Logged])).

log(Tab, Event) ->
    Number = ets:update_counter(Tab, count, 1),
    ets:insert(Tab, {{log, Number}, Event}).

%% Supervisors

start_sup(Tab, Tree) -> supervisor:start_link(?MODULE, {sup, Tab, Tree}).

init({sup, Tab, {sup, Name, Strategy, MaxRestarts, Window, Auto, Children}}) ->
    ets:insert(Tab, {{pid, Name}, self()}),
    Flags = #{strategy => Strategy, intensity => MaxRestarts, period => Window, auto_shutdown => Auto},
    {ok, {Flags, [spec(Tab, Strategy, Child) || Child <- Children]}};

%% Workers

init({worker, Tab, Name, Failing}) ->
    process_flag(trap_exit, true),
    Starts = ets:update_counter(Tab, {starts, Name}, 1, {{starts, Name}, 0}),
    case lists:member(Starts, Failing) of
        true ->
            log(Tab, "fail " ++ atom_to_list(Name)),
            {stop, planned};
        false ->
            log(Tab, "start " ++ atom_to_list(Name)),
            ets:insert(Tab, {{pid, Name}, self()}),
            {ok, {Tab, Name}}
    end.

spec(Tab, simple_one_for_one, {worker, _, Restart, Shutdown, _, Failing}) ->
    #{id => copy, start => {?MODULE, start_copy, [Tab, Failing]}, restart => Restart, shutdown => Shutdown};
spec(Tab, _, {worker, Name, Restart, Shutdown, Significant, Failing}) ->
    #{id => Name, start => {?MODULE, start_worker, [Tab, {Name, Failing}]}, restart => Restart,
      shutdown => Shutdown, significant => Significant};
spec(Tab, _, {nested, Restart, Significant, {sup, Name, _, _, _, _, _} = Tree}) ->
    #{id => Name, start => {?MODULE, start_sup, [Tab, Tree]}, restart => Restart, shutdown => infinity,
      significant => Significant, type => supervisor}.

start_worker(Tab, {Name, Failing}) -> gen_server:start_link(?MODULE, {worker, Tab, Name, Failing}, []).
start_copy(Tab, Failing, Name) -> start_worker(Tab, {Name, Failing}).

handle_call(_, _, State) -> {reply, ok, State}.

handle_cast(crash, {Tab, Name}) ->
    log(Tab, "crash " ++ atom_to_list(Name)),
    {stop, crash, ended};
handle_cast(finish, {Tab, Name}) ->
    log(Tab, "end " ++ atom_to_list(Name)),
    {stop, normal, ended}.

terminate(_, ended) -> ok;
terminate(_, {Tab, Name}) -> log(Tab, "stop " ++ atom_to_list(Name)).
