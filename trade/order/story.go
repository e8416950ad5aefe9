package order

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/danielgtaylor/huma/v2"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/trade"
)

// Story is everything that happened to an order in every service.
type Story struct {
	OrderNo string             `json:"order_no"`
	Entries []trade.StoryEntry `json:"entries"`
	// Unanswered names the services whose part is missing, and why: a story with a hole says so.
	Unanswered []Unanswered `json:"unanswered"`
}

// Unanswered is a service that did not tell its part.
type Unanswered struct {
	Service string `json:"service"`
	Error   string `json:"error"`
}

type wholeStoryAnswer struct{ Body Story }

func (s *Service) storyRoutes(api huma.API) {
	huma.Register(api, huma.Operation{
		OperationID: "whole-story", Method: http.MethodGet, Path: "/orders/{no}/story", Tags: []string{Name},
		Summary: "Everything that happened to an order, in every service, with causes and keys",
	}, s.story)
}

func (s *Service) story(ctx context.Context, in *struct {
	No string `path:"no" maxLength:"64"`
}) (*wholeStoryAnswer, error) {
	var own []trade.StoryEntry
	err := s.deps.DB.View(ctx, func(ctx context.Context, tx convergo.Tx) error {
		if _, err := s.visible(ctx, tx, in.No); err != nil {
			return err
		}
		var err error
		own, err = trade.StoryOf(ctx, tx, s.deps.DB.Dialect(), Name, in.No)
		return err
	})
	if err != nil {
		return nil, err
	}
	out := &wholeStoryAnswer{Story{OrderNo: in.No, Entries: own, Unanswered: []Unanswered{}}}
	names := slices.DeleteFunc(slices.Sorted(maps.Keys(s.cfg.Peers)), func(name string) bool { return name == Name }) // our own part we have
	parts, errs := make([][]trade.StoryEntry, len(names)), make([]error, len(names))
	var all sync.WaitGroup // no transaction is open while the network is waited for
	for i, name := range names {
		all.Go(func() { parts[i], errs[i] = s.ask(ctx, name, s.cfg.Peers[name], in.No) })
	}
	all.Wait()
	for i, name := range names {
		if errs[i] != nil {
			s.deps.Log.Warn("a service does not tell its part of a story", "peer", name, "order_no", in.No, "error", errs[i])
			out.Body.Unanswered = append(out.Body.Unanswered, Unanswered{name, "does not answer; ask it again later"})
			continue
		}
		out.Body.Entries = append(out.Body.Entries, parts[i]...)
	}
	trade.SortStory(out.Body.Entries)
	return out, nil
}

// ask gets a peer's part of the story.
func (s *Service) ask(ctx context.Context, name, base, no string) ([]trade.StoryEntry, error) {
	const most = 8 << 20
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimRight(base, "/")+trade.StoryPath(name, no), http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("story of %s from %s: %w", no, name, err)
	}
	r.Header.Set("Authorization", "Bearer "+s.cfg.PeerKey)
	res, err := s.cfg.Client.Do(r)
	if err != nil {
		return nil, fmt.Errorf("story of %s from %s: %w", no, name, err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("story of %s from %s: %s", no, name, res.Status)
	}
	var part trade.StoryAnswer
	if err := json.NewDecoder(io.LimitReader(res.Body, most)).Decode(&part); err != nil {
		return nil, fmt.Errorf("story of %s from %s: %w", no, name, err)
	}
	return part.Entries, nil
}
